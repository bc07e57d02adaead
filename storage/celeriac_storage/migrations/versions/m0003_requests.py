"""Words for a run, interrupts and tools that run elsewhere; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    execute(revision)
