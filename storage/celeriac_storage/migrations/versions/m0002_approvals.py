"""Proposals, decisions, who may decide, and the trail of it all; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    execute(revision)
