"""What late reports settle; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    execute(revision)
