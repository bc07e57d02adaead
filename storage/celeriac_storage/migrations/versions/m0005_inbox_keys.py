"""Words that may be said again under the same key; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    execute(revision)
