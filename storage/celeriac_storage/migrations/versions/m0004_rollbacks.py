"""Preconditions and rollbacks; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    execute(revision)
