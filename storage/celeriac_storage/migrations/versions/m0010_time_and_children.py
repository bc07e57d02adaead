"""Deadlines, timers, schedules and child runs; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    execute(revision)
