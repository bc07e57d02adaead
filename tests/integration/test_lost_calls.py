"""When a call whose worker is lost counts as over, and how what that worker still knows gets in."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import Connection

from celeriac.ids import CallId, RunId, UserId, WorkerId, new_worker_id
from celeriac.states import EffectState
from celeriac_storage import (
    claims,
    effects,
    lost_calls,
    resolving,
    steps,
    verdicts,
    workers,
)
from celeriac_storage.claims import Claim, RequestsChanged
from celeriac_storage.database import Database
from celeriac_storage.verdicts import Verdict
from celeriac_storage.workers import WorkerInfo
from tests.steps_by_hand import AGENT, Hand, lost_outcome
from tests.waiting import eventually

LEASE_SECONDS = 20.0
TIMEOUT_SECONDS = 300.0
VISIBILITY_SECONDS = 7.0
SLACK_SECONDS = 4.0  # what a busy machine may take between the rows and the look


class Caller(Hand):
    """A worker with a lease of its own length, in the middle of an external call."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.info = WorkerInfo(new_worker_id(), "localhost", 4712, "solo", [AGENT], ["celeriac"])
        self.worker_id = self.info.worker_id
        self.register(self.info)
        self.run_id = self.start()
        (self.call,) = self.ask_for_calls(self.run_id)
        self.claimed = self.claim(self.run_id)
        with database.connect() as connection:
            effects.begin_attempt(connection, self.claimed, self.call, TIMEOUT_SECONDS)

    def register(self, info: WorkerInfo) -> None:
        with self.database.begin() as connection:
            workers.register(connection, info, lease_seconds=LEASE_SECONDS, has_lifeline=True)

    def declare_dead(self, verdict: Verdict) -> None:
        with self.database.begin() as connection:
            assert verdicts.declare_dead(connection, self.worker_id, verdict)

    def seconds_until_visible(self) -> float:
        with self.database.connect() as connection:
            lost = lost_calls.find(connection, self.run_id, self.call, 1, VISIBILITY_SECONDS)
        return lost.seconds_until_visible


@pytest.fixture
def caller(database: Database) -> Caller:
    return Caller(database)


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=SLACK_SECONDS)


# features: 003-23, 004-20
def test_a_call_is_over_half_a_lease_after_its_workers_lifeline_broke(caller: Caller) -> None:
    caller.declare_dead("lifeline")

    assert caller.seconds_until_visible() == about(LEASE_SECONDS / 2 + VISIBILITY_SECONDS)


def test_a_worker_that_shows_up_again_may_be_calling_until_the_deadline(caller: Caller) -> None:
    """Its session had ended, and not the process."""
    caller.declare_dead("lifeline")

    caller.register(caller.info.successor())

    assert caller.seconds_until_visible() == about(TIMEOUT_SECONDS + VISIBILITY_SECONDS)


def test_a_silent_worker_may_be_calling_until_the_deadline(caller: Caller) -> None:
    caller.declare_dead("lease")

    assert caller.seconds_until_visible() == about(TIMEOUT_SECONDS + VISIBILITY_SECONDS)


def test_a_worker_that_says_goodbye_may_be_calling_until_the_deadline(caller: Caller) -> None:
    """It hands its step back, and its process ends only after that, if it does."""
    with caller.database.connect() as connection:
        workers.stop(connection, caller.worker_id)

    assert caller.seconds_until_visible() == about(TIMEOUT_SECONDS + VISIBILITY_SECONDS)


# What its worker still knows ----------------------------------------------------------------------


@dataclass(frozen=True)
class LostToAnother:
    """A call that was made under `lost`, and that the worker of `found` is finding out about."""

    hand: Hand
    run_id: RunId
    call: CallId
    lost: Claim
    found: Claim

    def report(self, connection: Connection) -> None:
        """What the worker that made the call does when it learns that it has lost its claim."""
        if lost_calls.report(
            connection, self.lost, self.call, EffectState.COMMITTED, {"result": "sent"}
        ):
            resolving.go_on_with_report(
                connection, self.run_id, self.call, WorkerId("the one that called")
            )

    def outcomes(self) -> list[str]:
        return [outcome for _, _, outcome, _ in self.hand.attempts(self.run_id, self.call)]


@pytest.fixture
def lost(database: Database) -> LostToAnother:
    hand = Hand(database)
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    lost = hand.begin_call(run_id, call)
    with database.connect() as connection:
        claims.release(connection, lost)
    return LostToAnother(hand, run_id, call, lost, hand.claim(run_id))


@contextmanager
def meanwhile(database: Database, act: Callable[[], object]) -> Iterator[Future[object]]:
    """`act` in another thread, begun when the block begins and waiting for a lock at its end."""
    with ThreadPoolExecutor(1) as other:
        future = other.submit(act)
        eventually(
            lambda: _waiting_for_locks(database) or future.done(), what="the other one waiting"
        )
        assert not future.done(), future.result()
        yield future


def _waiting_for_locks(database: Database) -> int:
    with database.connect() as connection:
        count: int = connection.exec_driver_sql(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).scalar_one()
    return count


def test_a_report_during_the_commit_of_who_finds_out_makes_it_look_again(
    lost: LostToAnother,
) -> None:
    database = lost.hand.database
    with ExitStack() as stack:
        with database.begin() as connection:
            lost.report(connection)
            finding_out = stack.enter_context(
                meanwhile(database, lambda: lost.hand.lose_outcome(lost.found, lost.call))
            )
        with pytest.raises(RequestsChanged):
            finding_out.result()

    assert lost.hand.row(lost.run_id).status == "running"
    assert lost.outcomes() == ["started", "committed"]


def test_a_report_that_comes_right_after_a_person_was_to_be_asked_spares_the_person(
    lost: LostToAnother,
) -> None:
    database = lost.hand.database

    def report() -> None:
        with database.begin() as connection:
            lost.report(connection)

    with ExitStack() as stack:
        with database.begin() as connection:
            steps.commit(connection, lost.found, lost_outcome(lost.call))
            reporting = stack.enter_context(meanwhile(database, report))
        reporting.result()

    assert lost.outcomes() == ["started", "unknown", "committed"]
    assert lost.hand.row(lost.run_id).status == "queued"


def test_a_person_and_a_report_that_settle_a_call_at_once_do_not_lock_each_other_out(
    lost: LostToAnother,
) -> None:
    database = lost.hand.database
    lost.hand.lose_outcome(lost.found, lost.call)

    def resolve() -> None:
        with database.begin() as connection:
            resolving.resolve(
                connection, lost.run_id, lost.call, resolving.TookEffect("seen"), UserId("ann")
            )

    with ExitStack() as stack:
        with database.begin() as connection:
            assert lost_calls.report(
                connection, lost.lost, lost.call, EffectState.COMMITTED, {"result": "sent"}
            )
            resolved = stack.enter_context(meanwhile(database, resolve))
            resolving.go_on_with_report(connection, lost.run_id, lost.call, WorkerId("w"))
        resolved.result()

    assert lost.outcomes() == ["started", "unknown", "committed", "committed"]
    assert lost.hand.row(lost.run_id).status == "queued"
    assert lost.hand.effect(lost.run_id, lost.call).result == "seen"
