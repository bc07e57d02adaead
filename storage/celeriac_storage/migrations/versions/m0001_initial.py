"""The first schema; the SQL beside this file is the whole of it."""

from celeriac_storage.migrations.sql import execute

revision = "0001"
down_revision = None


def upgrade() -> None:
    execute(revision)
