"""What runs may use and cost, and what was sent to a model; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    execute(revision)
