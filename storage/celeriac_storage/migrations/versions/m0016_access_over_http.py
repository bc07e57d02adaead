"""What the HTTP API may say of tokens and principals; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    execute(revision)
