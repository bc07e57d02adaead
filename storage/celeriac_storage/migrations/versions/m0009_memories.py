"""Long-term memory and what calls are shown of it; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    execute(revision)
