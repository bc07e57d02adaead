"""What a row may be born as, and which waits count; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    execute(revision)
