"""Who is signed in to the console; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    execute(revision)
