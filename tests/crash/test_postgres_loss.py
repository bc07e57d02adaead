"""Sessions and whole servers of PostgreSQL are lost under living workers: no false verdict, and no
step lost or done twice."""

import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from celeriac.states import RunStatus
from celeriac_storage.database import Database
from celeriac_storage.schema import migrate
from tests.crash.servers import PostgresCluster, postgres_cluster
from tests.crash.stack import Stack
from tests.waiting import eventually

SLOW_COMMIT = """
CREATE FUNCTION crash.wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WHILE NOT EXISTS (SELECT FROM crash.open_gates WHERE gate = 'commit') LOOP
        PERFORM pg_sleep(0.2);
    END LOOP;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON celeriac.checkpoints
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION crash.wait_at_commit()
"""
COMMITTING = """
SELECT pid FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE relation = 'celeriac.checkpoints'::regclass AND mode = 'RowExclusiveLock'
    AND wait_event IN ('PgSleep', 'SyncRep')
"""


@pytest.fixture
def cluster() -> Iterator[PostgresCluster]:
    with postgres_cluster() as cluster:
        yield cluster


@pytest.fixture
def database(cluster: PostgresCluster) -> Iterator[Database]:
    """The cluster's, instead of one on the server that all tests share."""
    database = Database(cluster.url, connections=8, pre_ping=True)
    migrate(database)
    yield database
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
    """Wait until the scheduler leads in the new server, and has looked at the lifelines there."""
    for _ in range(3):  # every half second, with some ten ticks in between
        _next_term(stack)


def _next_term(stack: Stack) -> None:
    terms = "SELECT held_until FROM celeriac.leaders"
    ((before,),) = eventually(lambda: stack.query(terms), what="the server back")
    eventually(
        lambda: stack.query(f"{terms} WHERE held_until > %s", before),
        what="the scheduler leading for another term",
    )


# features: 002-10
def test_a_killed_backend_makes_no_worker_dead_and_no_step_happen_twice(
    stack: Stack, cluster: PostgresCluster
) -> None:
    stack.start_scheduler()
    stack.start_workers(2)
    waiting = [stack.start("waiter") for _ in range(6)]
    for run_id in waiting:
        stack.wait_for_call(run_id, "wait_at")

    kill_one_backend(cluster)
    lead_again(stack)

    stack.open_gate("gate")
    for run_id in waiting:
        run = stack.completed(run_id)
        assert run.deaths == 0  # a claim that the crash forgot may have been made twice
        assert stack.tally(run_id) == ["before", "after"]
        assert len(stack.calls(run_id, "wait_at")) == 1
    assert stack.verdicts() == []
    assert stack.violations() == []


# features: 002-10, 003-11
def test_a_server_killed_during_commits_loses_and_doubles_no_step(
    stack: Stack, cluster: PostgresCluster
) -> None:
    stack.start_scheduler()
    stack.start_workers(2)
    running = [stack.start("counter") for _ in range(40)]
    eventually(
        lambda: stack.query("SELECT count(*) FROM celeriac.checkpoints"),
        until=lambda rows: rows[0][0] >= 60,
        what="steps being committed",
    )

    cluster.kill()
    cluster.start()

    ((ended,),) = stack.query("SELECT count(*) FROM celeriac.runs WHERE status = 'completed'")
    assert ended < len(running)  # it was in the middle
    for run_id in running:
        run = stack.completed(run_id)
        assert run.deaths == 0
        assert [step.step for step in run.steps] == list(range(7))
        assert stack.tally(run_id) == ["one", "three"]
    assert stack.verdicts() == []
    assert stack.violations() == []


# features: 002-10
@pytest.mark.parametrize("is_written", [False, True], ids=["before it is written", "after that"])
def test_a_backend_killed_in_the_middle_of_a_commit_leaves_the_step_whole_or_not_at_all(
    stack: Stack, cluster: PostgresCluster, is_written: bool
) -> None:
    stack.start_scheduler()
    stack.start_worker()
    run_id = stack.start("waiter")
    stack.wait_for_call(run_id, "wait_at")
    before = stack.run(run_id)
    with psycopg.connect(cluster.url, autocommit=True) as admin:
        if is_written:  # and flushed: now it waits for a standby that will never answer
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nowhere'")
            admin.execute("SELECT pg_reload_conf()")
        else:
            admin.execute(SLOW_COMMIT)
        admin.execute("SET synchronous_commit = off")
        admin.execute("INSERT INTO crash.open_gates VALUES ('gate')")
        ((victim,),) = eventually(
            lambda: admin.execute(COMMITTING).fetchall(), what="the commit of the step under way"
        )
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")

    os.kill(victim, signal.SIGKILL)

    left = eventually(lambda: stack.run(run_id), what="the server back")
    assert (left.step > before.step) == is_written
    assert stack.violations() == []
    stack.query("SELECT pg_reload_conf()")
    stack.open_gate("commit")
    run = stack.completed(run_id)
    assert stack.tally(run_id) == ["before", "after"]
    assert len(stack.calls(run_id, "wait_at")) == 1
    assert (run.deaths, stack.verdicts(), stack.violations()) == (0, [], [])


# features: 002-13
@pytest.mark.parametrize(("mutant", "verdicts"), [(None, []), ("one_tick_verdict", ["lifeline"])])
def test_a_restarted_server_proves_no_death(
    stack: Stack, cluster: PostgresCluster, mutant: str | None, verdicts: list[str]
) -> None:
    stack.processes.environment["CRASH_TEST_MUTANT"] = mutant or ""
    stack.start_scheduler()
    worker = stack.start_worker()
    run_id = stack.start("waiter")
    stack.wait_for_call(run_id, "wait_at")
    worker.freeze()  # so that it cannot take its lifeline again before somebody looks

    kill_one_backend(cluster)
    lead_again(stack)

    assert stack.verdicts() == verdicts
    if mutant is not None:
        return  # it may go on to bury the worker again and again
    worker.thaw()
    stack.open_gate("gate")
    run = stack.completed(run_id)
    assert run.deaths == 0
    assert stack.tally(run_id) == ["before", "after"]


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


# features: 003-11
def test_a_step_that_cannot_be_given_back_while_the_server_is_away_is_given_back_later(
    stack: Stack, cluster: PostgresCluster
) -> None:
    stack.start_scheduler()
    place = "step.after_claim@0"
    worker = stack.start_worker(test_points=f"{place}=1")
    run_id = stack.start("counter")
    eventually(lambda: stack.processes.reached(place), what="the step claimed")

    cluster.kill()
    # It cannot load what the step needs, nor say that it gives up.
    eventually(lambda: "was not handed back" in worker.output, what="the step given up")
    cluster.start()

    assert stack.completed(run_id).deaths == 0
    assert stack.tally(run_id) == ["one", "three"]
    assert stack.verdicts() == []
    assert stack.violations() == []


def _lifelines(stack: Stack) -> list[tuple[object, ...]]:
    return stack.query(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
