"""Runs that are forks of others; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    execute(revision)
