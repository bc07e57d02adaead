"""What operators look at, and who knocks without a token; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    execute(revision)
