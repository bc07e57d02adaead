"""When a call whose worker is lost counts as over, and how what that worker still knows gets in."""

import pytest

from celeriac.ids import new_worker_id
from celeriac_storage import effects, lost_calls, verdicts, workers
from celeriac_storage.database import Database
from celeriac_storage.verdicts import Verdict
from celeriac_storage.workers import WorkerInfo
from tests.steps_by_hand import AGENT, Hand

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
