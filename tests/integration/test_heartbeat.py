"""What a worker's heartbeat keeps up while its lifeline, its sessions or its name are lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Row

from celeriac import Agent
from celeriac.ids import RunId, WorkerId
from celeriac.scripted import ScriptedModel, say
from celeriac.settings import Settings, load_settings
from celeriac_scheduler.failover import TICKS_BEFORE_VERDICT, Failover
from celeriac_scheduler.outlet import Outlet
from celeriac_storage import verdicts
from celeriac_storage.database import Database
from celeriac_storage.lifeline import Lifeline
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.publisher import Publisher
from celeriac_tasks.step import take_step
from celeriac_tasks.worker_process import WorkerProcess
from tests.crash.proxy import Proxy, proxy_to
from tests.steps_by_hand import Hand
from tests.waiting import eventually

LEASE_SECONDS = 6.0  # a renewal every two seconds


@pytest.fixture
def settings(database_url: str, broker_url: str, way: Proxy) -> Settings:
    return load_settings(
        database_url=database_url,
        database_direct_url=way.url,
        broker_url=broker_url,
        lease_seconds=LEASE_SECONDS,
        connections=4,
    )


@pytest.fixture
def way(database_url: str) -> Iterator[Proxy]:
    """The lifeline's own way to the database."""
    with proxy_to(database_url) as way:
        yield way


@pytest.fixture
def worker(settings: Settings) -> Iterator[WorkerProcess]:
    agent = Agent("clerk", ScriptedModel([say("done")]))
    worker = WorkerProcess(settings, make_app(settings), {"clerk": agent})
    worker.start()
    yield worker
    worker.stop()


def row(database: Database, worker_id: WorkerId) -> Row[Any]:
    with database.connect() as connection:
        return connection.exec_driver_sql(
            "SELECT * FROM celeriac.workers WHERE worker_id = %s", (worker_id,)
        ).one()


def lose_lifeline(database: Database, worker: WorkerProcess, way: Proxy) -> None:
    """Until the worker has written down that it has none."""
    way.refuse()
    eventually(
        lambda: row(database, worker.worker_id).lifeline_key is None,
        what="the worker doing without its lifeline",
    )


def declare_dead(database: Database, worker_id: WorkerId) -> None:
    def declare() -> object:
        with database.begin() as connection:
            return verdicts.declare_dead(connection, worker_id, "lease")

    # A worker that renews its lease just then holds the row, which nobody waits for.
    eventually(declare, until=lambda found: found is not None, what="the verdict")


def taken(worker: WorkerProcess, run_id: RunId) -> None:
    with ThreadPoolExecutor(1) as slot:
        slot.submit(take_step, worker, run_id, 0).result()


def test_a_worker_whose_lifeline_cannot_be_had_lives_by_its_lease(
    database: Database, settings: Settings, worker: WorkerProcess, way: Proxy
) -> None:
    app = make_app(settings)
    failover = Failover(database, Outlet(database, Publisher(app), Broker(app)), settings)
    name = worker.worker_id

    lose_lifeline(database, worker, way)

    before = row(database, name).renewed_at
    eventually(
        lambda: row(database, name).renewed_at, until=lambda at: at > before, what="a renewal"
    )
    for _ in range(TICKS_BEFORE_VERDICT + 1):
        failover.tick()
    assert row(database, name).dead_at is None
    assert worker.worker_id == name
    app.close()


def test_a_lifeline_that_was_lost_for_a_while_counts_again_when_it_is_held(
    database: Database, worker: WorkerProcess, way: Proxy
) -> None:
    key = row(database, worker.worker_id).lifeline_key
    lose_lifeline(database, worker, way)

    way.serve()

    eventually(
        lambda: row(database, worker.worker_id).lifeline_key == key, what="the lifeline held again"
    )
    with database.connect() as connection:
        assert verdicts.suspects(connection, LEASE_SECONDS) == []


def test_a_worker_that_was_declared_dead_lives_on_though_its_lifeline_cannot_be_had(
    database: Database, worker: WorkerProcess, way: Proxy
) -> None:
    dead = worker.worker_id
    run_id = Hand(database).start()
    lose_lifeline(database, worker, way)

    declare_dead(database, dead)

    eventually(lambda: worker._named_for != dead, what="the worker under a new name")
    successor = row(database, worker.worker_id)
    assert (successor.lifeline_key, successor.dead_at) == (None, None)
    assert successor.predecessor == dead, "whoever finds its lost calls has to know that it lives"
    taken(worker, run_id)
    assert Hand(database).row(run_id).status == "completed"


def test_a_failed_renewal_is_tried_again_long_before_the_next_is_due(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WorkerProcess(
        settings.model_copy(update={"lease_seconds": 3600.0}),
        make_app(settings),
        {"clerk": Agent("clerk", ScriptedModel([]))},
    )
    refusals = iter([RuntimeError("no"), RuntimeError("no")])

    def refuse_twice(*_: object) -> None:
        if (refusal := next(refusals, None)) is not None:
            raise refusal

    monkeypatch.setattr(worker._heartbeat, "_on_renewal", refuse_twice)
    worker.start()
    before = row(database, worker.worker_id)
    with database.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )

    eventually(lambda: next(refusals, None) is None, what="both refusals")
    eventually(
        lambda: row(database, worker.worker_id),
        until=lambda now: now.renewed_at > before.renewed_at and now.lifeline_key is not None,
        what="a renewal, an hour before the next is due",
    )
    worker.stop()


def test_the_server_ends_the_session_of_a_client_that_vanished_after_five_seconds(
    database: Database,
) -> None:
    """Its own default is two hours, in which the session holds its locks."""
    with database.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT name, setting FROM pg_settings WHERE name LIKE %s", ("tcp%",)
        ).all()

    assert {name: int(setting) for name, setting in found} == {
        "tcp_keepalives_idle": 3,
        "tcp_keepalives_interval": 1,
        "tcp_keepalives_count": 2,
        "tcp_user_timeout": 5000,
    }


def test_a_lifeline_that_is_cut_off_outlives_the_lease(database: Database) -> None:
    """Or a worker in the middle of a call would be taken for dead instead of silent."""
    lifeline = Lifeline(database.url, lease_seconds=LEASE_SECONDS)
    assert lifeline.hold(WorkerId("w"))
    assert lifeline._connection is not None

    found = lifeline._connection.execute(
        "SELECT current_setting('tcp_keepalives_interval')::int,"
        " current_setting('tcp_keepalives_count')::int, current_setting('tcp_user_timeout'),"
        " current_setting('idle_session_timeout')"
    ).fetchone()

    assert found is not None
    interval_seconds, count, *without_limit = found
    assert LEASE_SECONDS < interval_seconds * count < 3 * LEASE_SECONDS
    assert without_limit == ["0", "0"]
    lifeline.close()
