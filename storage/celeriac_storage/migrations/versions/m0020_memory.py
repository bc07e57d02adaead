"""Vectors of memories, and budgets that lock once; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    execute(revision)
