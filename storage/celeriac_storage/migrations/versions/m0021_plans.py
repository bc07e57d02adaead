"""Plans: each version as it was started, and what a workflow's log says its lines are for; see the
SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    execute(revision)
