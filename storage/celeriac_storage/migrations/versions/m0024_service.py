"""How full budgets are, and searches of memories by meaning, for the login of the API; vectors
that can be pruned. See the SQL beside this file.
"""

from celeriac_storage.migrations.sql import execute

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    execute(revision)
