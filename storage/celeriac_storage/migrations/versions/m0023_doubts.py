"""Calls sent again in doubt; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    execute(revision)
