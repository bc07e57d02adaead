"""Sessions and whole servers of PostgreSQL are lost under living workers: no false verdict, and no
step lost or done twice."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from celeriac.states import RunStatus
from celeriac_storage.database import Database
from celeriac_storage.schema import migrate
from tests.crash.nursery import Nursery
from tests.crash.servers import PostgresCluster, postgres_cluster
from tests.crash.stack import Stack, started_processes
from tests.servers import TestBroker
from tests.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    with postgres_cluster() as cluster:
        yield cluster


@pytest.fixture
def own_stack(
    cluster: PostgresCluster, leased_broker: TestBroker, tmp_path: Path, nursery: Nursery
) -> Iterator[Stack]:
    database = Database(cluster.url, connections=8, pre_ping=True)
    migrate(database)
    with started_processes(database, leased_broker, tmp_path, nursery) as processes:
        stack = Stack(database, leased_broker, processes)
        yield stack
        stack.client.close()
    database.close()


def kill_one_backend(cluster: PostgresCluster) -> None:
    """SIGKILL an idle backend, upon which the server ends all sessions and starts anew."""
    with psycopg.connect(cluster.url) as victim:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        eventually(lambda: _is_ended(victim), what="the killed backend's session over")


def _is_ended(connection: psycopg.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return True
    return False


def lead_again(stack: Stack) -> None:
    """Wait until the scheduler has looked at the lifelines a few times in the new server."""
    ((before,),) = eventually(
        lambda: stack.query("SELECT clock_timestamp()"), what="the server back", deadline_seconds=30
    )
    eventually(
        lambda: stack.query(
            "SELECT FROM celeriac.leaders, pg_stat_activity"
            " WHERE held_until > %s + interval '3 seconds' AND application_name = "
            "'celeriac-scheduler'",
            before,
        ),
        deadline_seconds=30,
        what="the scheduler leading again, a second later",
    )


# features: 002-10
def test_a_killed_backend_makes_no_worker_dead_and_no_step_happen_twice(
    own_stack: Stack, cluster: PostgresCluster
) -> None:
    own_stack.start_scheduler()
    own_stack.start_workers(2)
    waiting = [own_stack.start("waiter") for _ in range(6)]
    for run_id in waiting:
        own_stack.wait_for_call(run_id, "wait_at")

    kill_one_backend(cluster)
    lead_again(own_stack)

    own_stack.open_gate("gate")
    for run_id in waiting:
        run = own_stack.completed(run_id)
        assert (run.epoch, run.deaths) == (len(run.steps), 0)
        assert own_stack.tally(run_id) == ["before", "after"]
        assert len(own_stack.calls(run_id, "wait_at")) == 1
    assert own_stack.verdicts() == []
    assert own_stack.violations() == []


# features: 002-10, 003-11
def test_a_server_killed_during_commits_loses_and_doubles_no_step(
    own_stack: Stack, cluster: PostgresCluster
) -> None:
    own_stack.start_scheduler()
    own_stack.start_workers(2)
    running = [own_stack.start("counter") for _ in range(40)]
    eventually(
        lambda: own_stack.query("SELECT count(*) FROM celeriac.checkpoints"),
        until=lambda rows: rows[0][0] >= 60,
        what="steps being committed",
    )

    cluster.kill()
    cluster.start()

    ((ended,),) = own_stack.query(
        "SELECT count(*) FROM celeriac.runs WHERE status = 'completed'"
    )
    assert ended < len(running)  # it was in the middle
    for run_id in running:
        run = own_stack.completed(run_id)
        assert run.deaths == 0
        assert [step.step for step in run.steps] == list(range(7))
        assert own_stack.tally(run_id) == ["one", "three"]
    assert own_stack.verdicts() == []
    assert own_stack.violations() == []


# features: 002-13
@pytest.mark.parametrize(("mutant", "verdicts"), [(None, []), ("one_tick_verdict", ["lifeline"])])
def test_a_restarted_server_proves_no_death(
    own_stack: Stack, cluster: PostgresCluster, mutant: str | None, verdicts: list[str]
) -> None:
    own_stack.processes.environment["CRASH_TEST_MUTANT"] = mutant or ""
    own_stack.start_scheduler()
    worker = own_stack.start_worker()
    run_id = own_stack.start("waiter")
    own_stack.wait_for_call(run_id, "wait_at")
    worker.freeze()  # so that it cannot take its lifeline again before somebody looks

    kill_one_backend(cluster)
    lead_again(own_stack)

    assert own_stack.verdicts() == verdicts
    worker.thaw()
    own_stack.open_gate("gate")
    run = own_stack.completed(run_id)
    assert run.deaths == len(verdicts)
    assert own_stack.tally(run_id) == ["before", "after"]


def test_a_lifeline_that_the_server_ends_is_taken_again_without_a_verdict(stack: Stack) -> None:
    stack.start_scheduler()
    worker = stack.start_worker()
    run_id = stack.start("waiter")
    stack.wait_for_call(run_id, "wait_at")
    (worker_id,) = stack.processes.worker_ids(worker)
    ((lifeline,),) = _lifelines(stack)

    stack.query("SELECT pg_terminate_backend(%s)", lifeline)

    ((another,),) = eventually(
        lambda: _lifelines(stack),
        until=lambda held: held and held != [(lifeline,)],
        what="the lifeline held again",
    )
    assert another != lifeline
    stack.open_gate("gate")
    run = stack.completed(run_id)
    assert (run.status, run.deaths, run.epoch) == (RunStatus.COMPLETED, 0, len(run.steps))
    assert stack.processes.worker_ids(worker) == [worker_id]
    assert stack.verdicts() == []
    assert stack.violations() == []


def _lifelines(stack: Stack) -> list[tuple[object, ...]]:
    return stack.query(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
