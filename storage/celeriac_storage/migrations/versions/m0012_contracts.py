"""The contract that a run is started with; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    execute(revision)
