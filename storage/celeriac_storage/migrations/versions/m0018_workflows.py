"""Workflows: their logs, their activities, their mailboxes; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    execute(revision)
