"""The figures of the rows are those of the rows, cost one look, and stay few whatever there is."""

from collections.abc import Iterator

import psycopg
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Connection

from celeriac_storage.database import Database
from celeriac_storage.gauges import Gauge, read_gauges
from celeriac_tasks.metrics import rows
from celeriac_tasks.metrics.rows import ROWS, Rows

SCENE = """
INSERT INTO celeriac.tenants VALUES ('default'), ('rival');
INSERT INTO celeriac.users VALUES ('default', 'alice'), ('rival', 'alice');
INSERT INTO celeriac.threads (tenant_id, thread_id, user_id)
    SELECT tenant_id, 't', user_id FROM celeriac.users;
INSERT INTO celeriac.workers (worker_id, hostname, pid, pool, agents, queues, renewed_at,
        lease_until, dead_at, verdict, stopped_at) VALUES
    ('w1', 'h', 1, 'threads', '{}', '{}', now() - interval '7 s', now() + interval '1 h', NULL,
        NULL, NULL),
    ('w2', 'h', 2, 'threads', '{}', '{}', now() - interval '90 s', now() - interval '80 s', NULL,
        NULL, NULL),
    ('w3', 'h', 3, 'threads', '{}', '{}', now(), now(), now() - interval '59 min', 'lease', NULL),
    ('w4', 'h', 4, 'threads', '{}', '{}', now(), now(), now() - interval '61 min', 'lifeline',
        NULL),
    ('w5', 'h', 5, 'threads', '{}', '{}', now() - interval '1 day', now(), NULL, NULL, now());
INSERT INTO celeriac.leaders VALUES ('scheduler', 'x', now() + interval '1 h');
SET session_replication_role = replica;
INSERT INTO celeriac.runs (run_id, tenant_id, user_id, thread_id, root_run_id, agent, limits,
        status, phase, resume_phase, queue, published_at, created_at, claim_token, worker_id,
        step_started_at, paused_at, error, finished_at, result, last_event_seq) VALUES
    ('q1', 'default', 'alice', 't', 'q1', 'a', '{}', 'queued', 'waiting_model', NULL, 'slow',
        now(), now() - interval '1 day', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 1),
    ('q2', 'rival', 'alice', 't', 'q2', 'a', '{}', 'queued', 'waiting_tool', NULL, 'fast', NULL,
        now() - interval '40 s', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0),
    ('r1', 'default', 'alice', 't', 'r1', 'a', '{}', 'running', 'waiting_model', NULL, 'slow',
        now(), now(), gen_random_uuid(), 'w1', now() - interval '30 s', NULL, NULL, NULL, NULL, 0),
    ('p1', 'default', 'alice', 't', 'p1', 'a', '{}', 'paused', 'waiting_timer', 'waiting_tool',
        'slow', now(), now(), NULL, NULL, NULL, now(), NULL, NULL, NULL, 0),
    ('n1', 'rival', 'alice', 't', 'n1', 'a', '{}', 'needs_attention', 'waiting_tool', NULL, 'slow',
        now(), now(), NULL, NULL, NULL, now() - interval '1 h', '{}', NULL, NULL, 0),
    ('d1', 'default', 'alice', 't', 'd1', 'a', '{}', 'completed', NULL, NULL, 'slow', now(), now(),
        NULL, NULL, NULL, NULL, NULL, now(), '1', 0);
INSERT INTO celeriac.events (run_id, seq, type, at, data)
    VALUES ('q1', 1, 'run.created', now() - interval '20 s', '{"agent": "a", "thread_id": "t"}');
INSERT INTO celeriac.effects (run_id, call_id, step, call_index, provider_call_id, tool,
        tool_version, kind, fingerprint, state)
    SELECT 'n1', '0.' || number, 0, number, '', 't', '1', 'external', '',
        CASE WHEN number < 3 THEN 'unknown' ELSE 'planned' END
    FROM generate_series(0, 3) AS number;
"""


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as superuser:
        superuser.execute(SCENE)
    with database.begin() as connection:
        yield connection


def test_each_figure_is_what_the_rows_say_of_all_tenants(connection: Connection) -> None:
    told = {(each.name, *each.labels): each.value for each in read_gauges(connection)}

    ages = {key: told.pop(key) for key in list(told) if key[0].endswith("age_seconds")}
    assert told == {
        ("runs", "queued", ""): 2,
        ("runs", "running", ""): 1,
        ("runs", "needs_attention", ""): 1,
        ("runs", "paused", "waiting_timer"): 1,
        ("unpublished_steps",): 1,
        ("effects_unsettled", "unknown"): 3,
        ("approvals_pending",): 0,
        ("workers", "alive"): 1,
        ("workers", "silent"): 1,
        ("worker_deaths_last_hour", "lease"): 1,
        ("scheduler_leads",): 1,
    }
    # Since their last event, or their begin; a generous bound for a busy machine.
    expected = {
        ("queue_age_seconds", "slow"): 20,
        ("queue_age_seconds", "fast"): 40,
        ("step_age_seconds",): 30,
        ("attention_age_seconds",): 3600,
        ("approval_age_seconds",): 0,
        ("lease_age_seconds",): 90,
    }
    assert ages.keys() == expected.keys()
    for key, seconds in expected.items():
        assert seconds <= ages[key] < seconds + 100, key
    assert {each.name for each in read_gauges(connection)} <= ROWS.keys()


def test_queues_that_somebody_invents_are_not_all_told(connection: Connection) -> None:
    connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
    connection.exec_driver_sql(
        "UPDATE celeriac.runs SET status = 'queued', phase = 'waiting_model', resume_phase = NULL"
        " WHERE run_id = 'p1'"
    )
    columns = "tenant_id, user_id, thread_id, root_run_id, agent, limits, status, phase"
    connection.exec_driver_sql(
        f"INSERT INTO celeriac.runs (run_id, queue, {columns})"
        f" SELECT 'x' || number, 'queue' || number, {columns}"
        " FROM celeriac.runs, generate_series(1, 200) AS number WHERE run_id = 'p1'"
    )

    told = [each for each in read_gauges(connection) if each.name == "queue_age_seconds"]

    assert len(told) == 50


BUDGETS = """
INSERT INTO celeriac.budgets
        (tenant_id, scope, subject, measure, soft_limit, hard_limit, on_exceeded, used, reserved)
    VALUES ('default', 'user', 'alice', 'usd', 8, 10, 'pause', 2, 1),
        ('rival', 'user', 'alice', 'usd', 8, 10, 'pause', 7, 2),
        ('rival', 'user', 'bob', 'usd', NULL, 10, 'pause', 12, 0),
        ('default', 'tenant', 'default', 'steps', NULL, NULL, 'pause', 5, 0),
        ('default', 'run', 'r1', 'steps', NULL, 0, 'fail', 0, 0)
"""


@pytest.mark.parametrize("role", [None, "celeriac_worker", "celeriac_api"])
def test_every_login_tells_how_full_the_budgets_of_all_tenants_are(
    connection: Connection, role: str | None
) -> None:
    connection.exec_driver_sql(BUDGETS)
    if role is not None:
        connection.exec_driver_sql(f"SET LOCAL ROLE {role}")

    told = {
        (each.name, *each.labels): each.value
        for each in read_gauges(connection)
        if each.name.startswith("budget")
    }

    assert told == {
        ("budgets", "user", "usd", "open"): 1,
        ("budgets", "user", "usd", "warned"): 1,
        ("budgets", "user", "usd", "used_up"): 1,
        ("budgets", "tenant", "steps", "open"): 1,
        ("budgets", "run", "steps", "used_up"): 1,
        ("budget_use_ratio", "user", "usd"): 1.2,
    }


@pytest.mark.parametrize("role", ["celeriac_worker", "celeriac_api"])
def test_the_logins_of_schedulers_and_of_the_api_may_read_them(
    connection: Connection, role: str
) -> None:
    connection.exec_driver_sql(f"SET LOCAL ROLE {role}")

    told = {(each.name, *each.labels): each.value for each in read_gauges(connection)}

    assert told["runs", "queued", ""] == 2


def test_all_who_ask_within_two_seconds_cost_one_look(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def look(connection: Connection) -> list[Gauge]:
        looks.append(connection)
        return read_gauges(connection)

    monkeypatch.setattr(rows, "read_gauges", look)
    monkeypatch.setattr(rows, "FRESH_SECONDS", 3600)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Rows(database.begin))
    assert looks == []  # to register asks nothing

    first, second = generate_latest(registry), generate_latest(registry)

    assert len(looks) == 1
    assert first == second
    assert b"celeriac_rows_read 1.0\n" in first


def test_a_database_that_is_away_is_a_figure() -> None:
    away = Database("postgresql://nobody@127.0.0.1:1/none")
    registry = CollectorRegistry(auto_describe=True)
    registry.register(Rows(away.begin))

    told = generate_latest(registry)

    assert b"celeriac_rows_read 0.0\n" in told
    assert b"celeriac_runs{" not in told
