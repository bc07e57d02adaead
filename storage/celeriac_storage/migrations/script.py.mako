"""${message}; see the SQL beside this file."""

from celeriac_storage.migrations.sql import execute

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    execute(revision)
