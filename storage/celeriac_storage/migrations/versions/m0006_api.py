"""Tokens, idempotency keys, and whose rows the API's role may see; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    execute(revision)
