"""Migrations: bringing a database to the schema this code expects, and refusing any other."""

from pathlib import Path

from sqlalchemy import Connection

from celeriac.errors import SchemaMismatch
from celeriac.secrets import redact_url
from celeriac_storage.database import Database

_MIGRATE_LOCK = 6071_9203_5511
"""An advisory lock for the length of the migration: two that start together run one by one."""

VERSION_TABLE = "celeriac_schema_version"  # in the public schema: it outlives the schema it counts
_MIGRATIONS = Path(__file__).with_name("migrations")


def migrate(database: Database) -> str:
    """Apply all missing migrations in one transaction and return the resulting revision.

    Raises `SchemaMismatch` if the database is newer than this code.
    """
    with database.begin() as connection:
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (_MIGRATE_LOCK,))
        _refuse_newer(connection, database.url)
        if revision(connection) != head():
            _upgrade(connection)
    return head()


def check_schema(database: Database) -> None:
    """Raise `SchemaMismatch` unless the database is exactly at this code's revision."""
    with database.connect() as connection:
        _refuse_newer(connection, database.url)
        found = revision(connection)
    if found is None:
        raise SchemaMismatch(
            f"the database at {redact_url(database.url)} has no Celeriac tables yet: run "
            "`celeriac migrate`"
        )
    if found != head():
        raise SchemaMismatch(
            f"the database at {redact_url(database.url)} is at revision {found}, this code needs "
            f"{head()}: run `celeriac migrate`"
        )


def revision(connection: Connection) -> str | None:
    """The revision the database is at, or None if it was never migrated."""
    is_there = connection.exec_driver_sql("SELECT to_regclass(%s)", (VERSION_TABLE,)).scalar()
    if is_there is None:
        return None
    found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()
    return None if found is None else str(found)


def head() -> str:
    """The newest revision this code knows."""
    return _known()[-1]


def _known() -> list[str]:
    """All revisions, the oldest first: each is the number in the name of its migration's file."""
    files = _MIGRATIONS.glob("versions/m*.py")
    return sorted(file.name.removeprefix("m").partition("_")[0] for file in files)


def _refuse_newer(connection: Connection, url: str) -> None:
    found = revision(connection)
    if found is not None and found not in _known():
        raise SchemaMismatch(
            f"the database at {redact_url(url)} is at revision {found}, which this code does not "
            f"know (its newest is {head()}): install a newer Celeriac, nothing was changed"
        )


def _upgrade(connection: Connection) -> None:
    # Only here: importing Alembic takes a third of a second, which neither a worker needs to wait
    # nor a stack that starts again.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
