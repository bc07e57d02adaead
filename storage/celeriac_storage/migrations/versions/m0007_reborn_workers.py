"""Which workers are one process under a new id; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    execute(revision)
