"""What older code has left is as good after an upgrade: each row, and what can be done with it."""

# features: 000-40, 004-60
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from celeriac import Client
from celeriac.ids import DEFAULT_TENANT, UserId
from celeriac.states import RunStatus
from celeriac_storage import erasing, pruning, schema
from celeriac_storage.audit import audit
from celeriac_storage.database import Database, driver_of
from celeriac_storage.erasing import Scope
from celeriac_storage.pruning import Policy

ROWS = Path(__file__).with_name("rows_at_0008.sql")
TABLES = """
    SELECT table_name FROM information_schema.tables
    WHERE table_schema = 'celeriac' AND table_type = 'BASE TABLE' ORDER BY 1
"""


@pytest.fixture
def old(empty_database_url: str) -> Iterator[Database]:
    """A database at migration 0008, with rows."""
    database = Database(empty_database_url)
    with database.begin() as connection:
        config = Config()
        config.set_main_option("script_location", str(Path(schema.__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0008")
    with database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        driver_of(connection).execute(ROWS.read_bytes())
    yield database
    database.close()


def rows(connection: Connection) -> dict[str, list[Any]]:
    """All rows by table, as JSON text of the columns in their order."""
    tables = connection.exec_driver_sql(TABLES).scalars().all()
    return {
        table: list(
            connection.exec_driver_sql(
                f"SELECT to_jsonb(row) FROM celeriac.{table} AS row ORDER BY row::text"
            ).scalars()
        )
        for table in tables
    }


def test_every_row_survives_with_every_value_and_the_audit_is_clean(old: Database) -> None:
    with old.begin() as connection:
        before = rows(connection)
    assert sum(map(len, before.values())) > 150

    schema.migrate(old)

    with old.begin() as connection:
        after = rows(connection)
    for table, found in before.items():
        assert len(after[table]) == len(found), table
        for row in found:
            assert any(row.items() <= now.items() for now in after[table]), (table, row)
    assert audit(old) == []


def test_what_was_left_to_do_can_be_done(old: Database) -> None:
    schema.migrate(old)
    client = Client(old.url)

    ended = client.runs(status=RunStatus.COMPLETED)
    rollbacks = [line for line in ended if client.get(line.run_id).rolls_back]
    assert len(rollbacks) == 1
    for line in client.runs():
        run = client.get(line.run_id)
        assert [event.seq for event in client.events(run.run_id)]
        if run.status is RunStatus.NEEDS_ATTENTION or run.status is RunStatus.PAUSED:
            assert client.cancel(run.run_id, by="alice") is RunStatus.CANCELLED
    assert audit(old) == []
    client.close()


def test_what_is_old_can_be_pruned_and_erased(old: Database) -> None:
    schema.migrate(old)

    pruned = pruning.prune(old, Policy(older_than_days=0))

    assert pruned.runs >= 3
    assert audit(old) == []
    erased = erasing.erase(
        old, Scope(DEFAULT_TENANT, user_id=UserId("local")), UserId("root"), cancels=True
    )
    assert erased.runs >= 1
    assert audit(old) == []
