"""Sessions of the console that are over are forgotten; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    execute(revision)
