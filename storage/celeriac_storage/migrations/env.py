"""Runs migrations on the connection that `celeriac_storage.schema` gives; nothing else calls it."""

from alembic import context

from celeriac_storage.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    transaction_per_migration=False,
)
context.run_migrations()
