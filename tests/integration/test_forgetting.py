"""What the scheduler forgets, by the database's clock, and that a turn stays short."""

import pytest
from sqlalchemy import Connection

from celeriac_scheduler import forgetting
from celeriac_scheduler.forgetting import forget_expired
from celeriac_storage import console_sessions, idempotency_keys, strangers
from celeriac_storage.database import Database
from tests.processes import Processes
from tests.waiting import eventually

FILL = """
INSERT INTO celeriac.idempotency_keys (tenant_id, principal, operation, key, fingerprint, status,
    headers, body, created_at)
SELECT 'default', 'alice', 'start_run', 'k' || number, sha256(''), 201, '{}', '{"x": 1}',
    clock_timestamp() - number * interval '1 hour'
FROM generate_series(1, 60) AS number
"""


@pytest.fixture
def filled(database: Database) -> Database:
    """Sixty answers, one for each of the last hours."""
    with database.begin() as connection:
        connection.exec_driver_sql("INSERT INTO celeriac.tenants VALUES ('default')")
        connection.exec_driver_sql(FILL)
    return database


def kept(connection: Connection) -> tuple[int, int]:
    """How many keys there are, and how many of them with their answer."""
    row = connection.exec_driver_sql(
        "SELECT count(*), count(body) FROM celeriac.idempotency_keys"
    ).one()
    return row[0], row[1]


def test_answers_older_than_two_days_go_and_their_keys_stay(filled: Database) -> None:
    forget_expired(filled)

    with filled.connect() as connection:
        assert kept(connection) == (60, idempotency_keys.KEPT_HOURS - 1)
        (youngest,) = connection.exec_driver_sql(
            "SELECT min(substr(key, 2)::int) FROM celeriac.idempotency_keys"
            " WHERE pruned_at IS NOT NULL"
        ).one()
    assert youngest == idempotency_keys.KEPT_HOURS


def test_a_turn_takes_a_bounded_number_the_oldest_first(
    filled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgetting, "BATCH", 5)

    for turn, left in enumerate([55, 50, 47, 47], 1):
        forget_expired(filled)
        with filled.connect() as connection:
            assert kept(connection) == (60, left), turn
            is_in_order = connection.exec_driver_sql(
                "SELECT max(created_at) FILTER (WHERE body IS NULL)"
                " < min(created_at) FILTER (WHERE body IS NOT NULL)"
                " FROM celeriac.idempotency_keys"
            ).scalar_one()
        assert is_in_order


def test_one_that_somebody_holds_is_left_for_the_next_turn(filled: Database) -> None:
    with filled.begin() as holder:
        holder.exec_driver_sql("SELECT FROM celeriac.idempotency_keys WHERE key = 'k60' FOR UPDATE")
        forget_expired(filled)
        with filled.connect() as connection:
            assert kept(connection) == (60, 48)
    forget_expired(filled)
    with filled.connect() as connection:
        assert kept(connection) == (60, 47)


def test_the_login_of_schedulers_may_do_it(filled: Database) -> None:
    with filled.begin() as connection:
        connection.exec_driver_sql("SET LOCAL ROLE celeriac_worker")
        assert idempotency_keys.prune(connection) == 13
        assert strangers.forget(connection) == 0
        assert console_sessions.forget(connection, limit=1) == 0


def test_strangers_that_were_silent_for_a_week_go(database: Database) -> None:
    with database.begin() as connection:
        strangers.note(connection, {"192.0.2.1": 3, "192.0.2.2": 1})
        connection.exec_driver_sql(
            "UPDATE celeriac.strangers SET last_at = last_at - interval '7 days'"
            " WHERE address = '192.0.2.1'"
        )

    forget_expired(database)

    with database.connect() as connection:
        left = connection.exec_driver_sql("SELECT address FROM celeriac.strangers").scalars().all()
    assert left == ["192.0.2.2"]


SESSIONS = """
INSERT INTO celeriac.console_sessions (session_id, tenant_id, user_id, roles, hash, code_hash,
    opened_at, expires_at, code_expires_at, ended_at, created_at)
SELECT name, 'default', 'alice', '{}', CASE WHEN expires IS NOT NULL THEN sha256(name::bytea) END,
    CASE WHEN code_expires IS NOT NULL THEN sha256(('code ' || name)::bytea) END,
    CASE WHEN expires IS NOT NULL THEN now() - interval '3 days' END, now() + expires::interval,
    now() + code_expires::interval, now() + ended::interval, now() - interval '3 days'
FROM (VALUES
    ('expired', '-25 h', NULL, NULL), ('just expired', '-23 h', NULL, NULL),
    ('signed out', '1 h', NULL, '-25 h'), ('just signed out', '1 h', NULL, '-23 h'),
    ('open', '1 h', NULL, NULL), ('opened by a code', '1 h', '-25 h', NULL),
    ('code expired', NULL, '-25 h', NULL), ('code open', NULL, '1 h', NULL)
) AS session (name, expires, code_expires, ended)
"""


def test_sessions_of_the_console_go_a_day_after_their_end(database: Database) -> None:
    with database.begin() as connection:
        connection.exec_driver_sql("INSERT INTO celeriac.tenants VALUES ('default')")
        connection.exec_driver_sql(SESSIONS)
        connection.exec_driver_sql("SET LOCAL ROLE celeriac_worker")

        assert console_sessions.forget(connection, limit=2) == 2
        assert console_sessions.forget(connection, limit=9) == 1

    forget_expired(database)
    with database.connect() as connection:
        left = connection.exec_driver_sql("SELECT session_id FROM celeriac.console_sessions")
        assert set(left.scalars()) == {
            "just expired", "just signed out", "open", "opened by a code", "code open"
        }  # fmt: skip


@pytest.mark.processes
def test_a_scheduler_does_it_by_itself(filled: Database, processes: Processes) -> None:
    processes.start_scheduler()

    def left() -> tuple[int, int]:
        with filled.connect() as connection:
            return kept(connection)

    eventually(left, until=(60, 47).__eq__, what="the old answers are gone")
