"""Migrations: once, in one piece, and never on a database that newer code has touched."""

# features: 000-40, 003-11
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from celeriac.errors import DatabaseUnavailable, SchemaMismatch
from celeriac_storage import tables
from celeriac_storage.database import Database
from celeriac_storage.schema import VERSION_TABLE, check_schema, head, migrate, revision


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    database = Database(empty_database_url)
    yield database
    database.close()


def catalogue(database: Database) -> list[str]:
    """Everything that a migration could make, and the version that it is at."""
    with database.connect() as connection:
        version = revision(connection)
        found = connection.exec_driver_sql(
            """
            SELECT 'table ' || table_schema || '.' || table_name || '.' || column_name || ' '
                || data_type FROM information_schema.columns
                WHERE table_schema IN ('celeriac', 'public')
            UNION SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'celeriac'
            UNION SELECT 'constraint ' || conname || pg_get_constraintdef(oid)
                FROM pg_constraint WHERE connamespace = to_regnamespace('celeriac')
            UNION SELECT 'trigger ' || tgname || pg_get_triggerdef(oid)
                FROM pg_trigger WHERE NOT tgisinternal
            UNION SELECT 'function ' || proname || prosrc
                FROM pg_proc WHERE pronamespace = to_regnamespace('celeriac')
            UNION SELECT 'grant ' || table_name || grantee || privilege_type
                FROM information_schema.table_privileges WHERE table_schema = 'celeriac'
            """
        ).scalars()
        return [f"version {version}", *sorted(found)]


def set_version(connection: Connection, version: str) -> None:
    connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = %s", (version,))


def test_the_tables_in_code_are_the_tables_in_the_database(database: Database) -> None:
    def is_compared(_object: object, _name: object, kind: str, *_: object) -> bool:
        # Keys, checks and indexes stand in the migration alone: no statement is built from them.
        return kind in ("table", "column")

    def is_ours(name: str | None, kind: str, _parents: object) -> bool:
        return kind != "schema" or name == tables.SCHEMA

    with database.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_object": is_compared,
                "include_name": is_ours,
                "compare_type": True,
            },
        )
        assert compare_metadata(context, tables.metadata) == []


def test_the_primary_keys_in_code_are_those_in_the_database(database: Database) -> None:
    with database.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT conrelid::regclass::text, array_agg(attname::text ORDER BY position)"
            " FROM pg_constraint, unnest(conkey) WITH ORDINALITY AS key (number, position)"
            " JOIN pg_attribute ON attnum = number"
            " WHERE contype = 'p' AND attrelid = conrelid"
            " AND connamespace = 'celeriac'::regnamespace GROUP BY 1"
        ).all()

    assert {name: list(columns) for name, columns in rows} == {
        str(table): [column.name for column in table.primary_key]
        for table in tables.metadata.sorted_tables
    }


def test_a_database_is_migrated_to_the_newest_revision(empty: Database) -> None:
    assert migrate(empty) == head()

    check_schema(empty)


def test_migrating_again_changes_nothing(empty: Database) -> None:
    migrate(empty)
    before = catalogue(empty)

    assert migrate(empty) == head()

    assert catalogue(empty) == before


def test_a_database_that_is_at_the_newest_revision_is_not_kept_waiting(database: Database) -> None:
    code = (
        "import sys; from celeriac_storage.database import Database;"
        "from celeriac_storage.schema import migrate;"
        "print(migrate(Database(sys.argv[1])), 'alembic' in sys.modules)"
    )

    ran = subprocess.run(
        [sys.executable, "-c", code, database.url], capture_output=True, text=True, check=True
    )

    assert ran.stdout.split() == [head(), "False"]


def test_two_migrations_at_once_run_one_after_the_other(
    empty: Database, empty_database_url: str
) -> None:
    together = threading.Barrier(3)
    others = [Database(empty_database_url) for _ in range(3)]

    def race(database: Database) -> str:
        together.wait(5)
        return migrate(database)

    with ThreadPoolExecutor(3) as migrators:
        assert list(migrators.map(race, others)) == [head()] * 3
    check_schema(empty)
    for database in others:
        database.close()


def test_a_migration_that_fails_leaves_nothing_behind(empty: Database) -> None:
    with empty.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA celeriac")
    before = catalogue(empty)

    with pytest.raises(psycopg.errors.DuplicateSchema):
        migrate(empty)

    assert catalogue(empty) == before


def test_a_newer_database_is_refused_and_left_untouched(database: Database) -> None:
    with database.begin() as connection:
        set_version(connection, "9999")
    before = catalogue(database)

    with pytest.raises(SchemaMismatch, match="revision 9999, which this code does not know"):
        migrate(database)
    with pytest.raises(SchemaMismatch, match="install a newer Celeriac, nothing was changed"):
        check_schema(database)

    assert catalogue(database) == before


def test_a_database_without_tables_says_what_to_do(empty: Database) -> None:
    with pytest.raises(SchemaMismatch, match="has no Celeriac tables yet: run `celeriac migrate`"):
        check_schema(empty)

    assert catalogue(empty) == ["version None"]


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    database = Database("postgresql://clerk:secret@127.0.0.1:1/celeriac")

    with pytest.raises(DatabaseUnavailable) as refused:
        migrate(database)

    message = str(refused.value)
    assert "127.0.0.1:1/celeriac" in message
    assert "check that it runs" in message
    assert "secret" not in message
