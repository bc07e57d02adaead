"""How full budgets are, for the login of the API; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    execute(revision)
