"""A claim whose answer got lost is given back by the worker that has it; one in use is not.

And a run that no live worker could ever claim says so at its start.
"""

import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Row

from celeriac import Agent, tool
from celeriac.errors import Fenced
from celeriac.ids import ClaimToken, RunId, new_run_id, new_thread_id
from celeriac.messages import dump_message, user_message
from celeriac.scripted import ScriptedModel, call, say
from celeriac.settings import load_settings
from celeriac.states import Phase, RunStatus, StepKind
from celeriac_storage import claims, dispatch, starting, steps
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.new_run import NewRun, Started
from celeriac_storage.step_record import Next, StepRecord
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.step import take_step
from celeriac_tasks.worker_process import WorkerProcess
from tests.waiting import eventually

LONG_LEASE_SECONDS = 600.0  # no heartbeat comes during the test
SHORT_LEASE_SECONDS = 1.0  # one comes every third of a second

CLERK = Agent("clerk", ScriptedModel([say("done")]))

MakeWorker = Callable[..., WorkerProcess]


@pytest.fixture
def make_worker(database_url: str, broker_url: str) -> Iterator[MakeWorker]:
    with ExitStack() as stack:

        def make(
            agent: Agent = CLERK, *, lease_seconds: float = LONG_LEASE_SECONDS, **given: object
        ) -> WorkerProcess:
            settings = load_settings(
                **{
                    "database_url": database_url,
                    "broker_url": broker_url,
                    "lease_seconds": lease_seconds,
                    "connections": 4,
                    **given,
                }
            )
            process = WorkerProcess(settings, make_app(settings), {agent.name: agent})
            process.start()
            stack.callback(process.stop)
            return process

        yield make


def new_run(queue: str = "celeriac") -> NewRun:
    return NewRun(
        run_id=new_run_id(),
        agent="clerk",
        input="hello",
        user_message=dump_message(user_message("hello")),
        limits={},
        thread_id=new_thread_id(),
        queue=queue,
    )


def start(database: Database, new: NewRun) -> Started:
    with database.begin() as connection:
        return starting.start(connection, new)


def started(database: Database) -> RunId:
    new = new_run()
    assert start(database, new).status is RunStatus.QUEUED
    return new.run_id


def claim(worker: WorkerProcess, run_id: RunId, token: ClaimToken) -> Claim:
    with worker.database.connect() as connection:
        claim = claims.claim(
            connection,
            run_id,
            0,
            worker_id=worker.worker_id,
            deadlines=worker.deadlines,
            is_alone=True,
            token=token,
        )
    assert claim is not None
    return claim


def lose_claim(worker: WorkerProcess, run_id: RunId) -> Claim:
    """What a claim leaves whose answer never came: running, with a token that nobody uses."""
    with worker.token() as token:
        return claim(worker, run_id, token)


def give_back_lost(worker: WorkerProcess) -> None:
    """What the heartbeat does at each renewal."""
    with worker.database.connect() as connection:
        worker._release_lost(connection)


def held(worker: WorkerProcess) -> set[ClaimToken]:
    with worker.database.connect() as connection:
        return claims.tokens_held(connection, worker.worker_id)


def row(database: Database, run_id: RunId) -> Row[Any]:
    with database.connect() as connection:
        return connection.exec_driver_sql(
            "SELECT * FROM celeriac.runs WHERE run_id = %s", (run_id,)
        ).one()


def test_a_claim_in_use_is_left_alone_and_a_lost_one_is_queued(
    database: Database, make_worker: MakeWorker
) -> None:
    worker = make_worker()
    used, lost = started(database), started(database)
    lost_claim = lose_claim(worker, lost)
    with worker.token() as token:
        used_claim = claim(worker, used, token)
        assert held(worker) == {used_claim.token, lost_claim.token}

        give_back_lost(worker)

        assert held(worker) == {used_claim.token}
        assert (row(database, used).status, row(database, used).step) == ("running", 0)
        given_back = row(database, lost)
        assert (given_back.status, given_back.step, given_back.claim_token) == ("queued", 0, None)
        assert (given_back.published_at, given_back.strikes) == (None, 0), "to be published at once"
        assert given_back.step_deadline is None

    give_back_lost(worker)
    assert held(worker) == set()
    assert row(database, used).status == "queued"


def test_a_step_that_was_given_back_is_taken_again_and_its_old_claim_commits_nothing(
    database: Database, make_worker: MakeWorker
) -> None:
    worker = make_worker()
    run_id = started(database)
    lost = lose_claim(worker, run_id)
    give_back_lost(worker)

    take_step(worker, run_id, 0)

    finished = row(database, run_id)
    assert (finished.status, finished.result, finished.step) == ("completed", "done", 1)
    late = StepRecord(
        Next(RunStatus.COMPLETED, outcome="completed", result="late"), StepKind.THINK, "terminal"
    )
    with pytest.raises(Fenced), worker.database.begin() as connection:
        steps.commit(connection, lost, late)
    assert row(database, run_id).result == "done"


def test_a_step_that_lost_its_claim_ends_without_a_word_about_the_present_one(
    database: Database, make_worker: MakeWorker
) -> None:
    """Both are of one run, in one process; a shutdown has to hand the present one back."""
    worker = make_worker()
    run_id = started(database)
    old = lose_claim(worker, run_id)
    give_back_lost(worker)
    with worker.token() as token, worker.holding(claim(worker, run_id, token)):
        with worker.holding(old):
            pass

        assert worker.is_busy
        worker.hand_back()

    assert row(database, run_id).status == "queued"


def test_a_worker_gives_back_no_claim_of_another(
    database: Database, make_worker: MakeWorker
) -> None:
    worker, other = make_worker(), make_worker()
    run_id = started(database)
    lose_claim(other, run_id)

    give_back_lost(worker)

    assert row(database, run_id).status == "running"
    give_back_lost(other)
    assert row(database, run_id).status == "queued"


def test_only_the_tokens_that_are_named_are_released(
    database: Database, make_worker: MakeWorker
) -> None:
    worker = make_worker()
    kept, released = started(database), started(database)
    lose_claim(worker, kept)
    lost = lose_claim(worker, released)

    with database.connect() as connection:
        assert claims.release_lost(connection, worker.worker_id, []) == 0
        assert claims.release_lost(connection, worker.worker_id, [lost.token]) == 1
        assert claims.release_lost(connection, worker.worker_id, [lost.token]) == 0

    assert row(database, released).status == "queued"
    assert row(database, kept).status == "running"


def test_the_heartbeat_gives_a_lost_claim_back_long_before_its_deadline(
    database: Database, make_worker: MakeWorker
) -> None:
    worker = make_worker(lease_seconds=SHORT_LEASE_SECONDS)
    run_id = started(database)

    lose_claim(worker, run_id)

    eventually(
        lambda: row(database, run_id).status,
        until=lambda status: status == "queued",
        what="the lost claim given back",
    )


def test_no_heartbeat_takes_a_step_away_from_the_worker_that_executes_it(
    database: Database, make_worker: MakeWorker
) -> None:
    seen: list[tuple[str, int]] = []

    @tool(effect="none")
    def last_for_two_renewals() -> str:
        """Take a while."""
        for _ in range(2):
            eventually(
                renewed_at,
                until=partial(operator.ne, renewed_at()),
                what="a renewal",
            )
        executing = row(database, run_id)
        seen.append((executing.status, executing.epoch))
        return "done"

    def renewed_at() -> object:
        with database.connect() as connection:
            return connection.exec_driver_sql(
                "SELECT renewed_at FROM celeriac.workers"
            ).scalar_one()

    agent = Agent(
        "clerk",
        ScriptedModel([call("last_for_two_renewals"), say("done")]),
        tools=[last_for_two_renewals],
    )
    worker = make_worker(agent, lease_seconds=SHORT_LEASE_SECONDS)
    run_id = started(database)

    for step in range(3):
        take_step(worker, run_id, step)

    assert seen == [("running", 2)]
    finished = row(database, run_id)
    assert (finished.status, finished.epoch, finished.strikes) == ("completed", 3, 0)


def test_a_step_goes_round_among_workers_without_its_agent_only_once(
    database: Database, make_worker: MakeWorker
) -> None:
    """Or each of them would publish it again ten times a second, for as long as a deploy lasts."""
    make_worker()  # has the agent, but takes no message in this test
    wrong = make_worker(Agent("cook", ScriptedModel([])))
    run_id = started(database)

    for is_due in (True, False, False):
        with database.connect() as connection:
            dispatch.take_unpublished(connection)
        take_step(wrong, run_id, 0)
        assert (row(database, run_id).published_at is None) is is_due

    assert row(database, run_id).status == "queued"


# features: 000-40 (a newer row)
def test_a_step_that_goes_on_from_newer_code_is_left_to_workers_that_have_it(
    database: Database, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent("clerk", ScriptedModel([call("nothing"), say("done")]), tools=[nothing])
    worker = make_worker(agent)
    run_id = started(database)
    newer = claims.CHECKPOINT_SCHEMA_VERSION + 1
    monkeypatch.setattr(steps, "CHECKPOINT_SCHEMA_VERSION", newer)
    take_step(worker, run_id, 0)

    take_step(worker, run_id, 1)

    left = row(database, run_id)
    assert (left.status, left.step, left.epoch, left.strikes) == ("queued", 1, 1, 0)
    assert left.published_at is None, "the scheduler publishes it for others"
    monkeypatch.setattr(claims, "CHECKPOINT_SCHEMA_VERSION", newer)
    for step in (1, 2):
        take_step(worker, run_id, step)
    assert row(database, run_id).status == "completed"


def test_a_step_that_came_to_a_worker_declared_dead_is_published_again_at_once(
    database: Database, make_worker: MakeWorker
) -> None:
    worker, other = make_worker(), make_worker()
    run_id = started(database)
    with database.begin() as connection:
        dispatch.take_unpublished(connection)
        connection.exec_driver_sql(
            "UPDATE celeriac.workers SET dead_at = now(), verdict = 'lease' WHERE worker_id = %s",
            (worker.worker_id,),
        )

    take_step(worker, run_id, 0)

    left = row(database, run_id)
    assert (left.status, left.epoch, left.published_at) == ("queued", 0, None)
    take_step(other, run_id, 0)
    assert row(database, run_id).status == "completed"


def test_a_run_on_a_queue_that_no_live_worker_serves_waits_for_one(
    database: Database, make_worker: MakeWorker
) -> None:
    make_worker()  # has the agent, on another queue
    new = new_run(queue="express")

    assert start(database, new) == Started(RunStatus.PAUSED, Phase.WAITING_WORKER)
    assert start(database, new_run()).status is RunStatus.QUEUED

    express = make_worker(queues="express")
    woken = row(database, new.run_id)
    assert (woken.status, woken.phase) == ("queued", "waiting_model")
    take_step(express, new.run_id, 0)
    assert row(database, new.run_id).status == "completed"


def test_a_queue_whose_only_worker_has_left_is_served_by_nobody(
    database: Database, make_worker: MakeWorker
) -> None:
    make_worker()
    gone = make_worker(queues="express")
    assert start(database, new_run(queue="express")).status is RunStatus.QUEUED

    with database.connect() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.workers SET stopped_at = now() WHERE worker_id = %s",
            (gone.worker_id,),
        )

    waiting = start(database, new_run(queue="express"))
    assert waiting == Started(RunStatus.PAUSED, Phase.WAITING_WORKER)


def test_a_broker_that_is_away_costs_a_run_that_needs_none_no_strike(
    database: Database, make_worker: MakeWorker
) -> None:
    agent = Agent("clerk", ScriptedModel([call("nothing"), say("done")]), tools=[nothing])
    worker = make_worker(
        agent, broker_url="redis://127.0.0.1:1/0", steps_per_task="auto", pool="solo"
    )
    run_id = started(database)

    take_step(worker, run_id, 0)

    finished = row(database, run_id)
    assert (finished.status, finished.strikes, finished.epoch) == ("completed", 0, 1)


@tool(effect="none")
def nothing() -> str:
    """Do nothing."""
    return "nothing"
