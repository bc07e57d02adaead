"""Pruning, erasing, and what auditors see; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    execute(revision)
