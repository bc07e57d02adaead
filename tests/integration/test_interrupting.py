"""Interrupting: at once where nobody works on the run, else at the step's own commit; what has not
begun is not done any more once the user has said something else."""

# features: 002-31, 003-08
import threading
from collections.abc import Callable, Iterator

import pytest

from celeriac import Agent, Approval, Client, tool
from celeriac.errors import Conflict, ToolError, UnknownRun
from celeriac.ids import RunId
from celeriac.recovery import Retry
from celeriac.states import RunStatus
from celeriac_storage.database import Database
from tests.provider_server import ProviderServer, Reply
from tests.talk import Calls, Talk
from tests.waiting import eventually
from tests.worker_in_process import Worker

TWO_NOTES: Calls = [("note", {"text": "a"}), ("note", {"text": "b"})]
WAITS_FOR_USER = ("paused", "waiting_user")


@tool(effect="external", approval=Approval())
def pay(cents: int) -> str:
    """Pay somebody."""
    raise AssertionError(f"nobody has approved {cents}")


@tool(effect="external", retry=Retry(attempts=5, first_seconds=60))
def flaky() -> str:
    """Fail without an effect."""
    raise ToolError("busy")


@pytest.fixture
def made(database: Database, broker_url: str) -> Iterator[Callable[[Calls], Talk]]:
    talks: list[Talk] = []

    def make(calls: Calls = TWO_NOTES) -> Talk:
        talks.append(Talk(database, broker_url, calls, [pay, flaky]))
        return talks[-1]

    yield make
    for talk in talks:
        talk.close()


@pytest.fixture
def talk(made: Callable[[Calls], Talk]) -> Talk:
    return made(TWO_NOTES)


def test_a_queued_run_stops_at_once_and_nothing_of_it_is_done(talk: Talk) -> None:
    run_id = talk.start()

    assert talk.client.interrupt(run_id, by="alice") is RunStatus.PAUSED

    assert talk.stands == WAITS_FOR_USER
    assert talk.events == ["run.created", "run.interrupt_requested", "run.paused"]
    talk.step()  # a message that was on its way
    assert talk.shown == []


def test_between_two_calls_the_second_is_not_made_once_something_else_is_said(talk: Talk) -> None:
    run_id = talk.start()
    talk.during_call = [lambda: talk.client.interrupt(run_id)]

    assert talk.go_on() is RunStatus.PAUSED
    assert (talk.stands, talk.noted, talk.states) == (
        WAITS_FOR_USER,
        ["a"],  # begun, and so seen to its end and recorded
        ["committed", "planned"],
    )
    assert talk.client.say(run_id, "no, stop that") is RunStatus.QUEUED
    assert talk.go_on() is RunStatus.COMPLETED

    assert (talk.noted, talk.states) == (["a"], ["committed", "rejected"])
    assert "this call was not made: the user interrupted the run" in talk.shown[-1][-2]
    assert talk.shown[-1][-1] == "no, stop that"
    assert talk.roles == ["user", "assistant", "results", "results", "user", "assistant"]
    assert talk.row.interrupt_requested_at is None


def test_what_was_said_before_the_interrupt_does_not_answer_it(talk: Talk) -> None:
    run_id = talk.start()
    talk.during_call = [
        lambda: talk.client.say(run_id, "in blue"),
        lambda: talk.client.interrupt(run_id),
    ]
    assert talk.go_on() is RunStatus.PAUSED
    assert talk.stands == WAITS_FOR_USER

    talk.client.say(run_id, "in red")
    assert talk.go_on() is RunStatus.COMPLETED

    assert talk.shown[-1][-2:] == ["in blue", "in red"]


def test_an_answer_that_comes_before_the_run_has_stopped_keeps_it_going(talk: Talk) -> None:
    run_id = talk.start()
    talk.during_call = [
        lambda: talk.client.interrupt(run_id),
        lambda: talk.client.say(run_id, "do something else"),
    ]

    assert talk.go_on() is RunStatus.COMPLETED

    assert (talk.noted, talk.states) == (["a"], ["committed", "rejected"])
    assert "run.paused" not in talk.events


def test_a_call_that_waits_for_a_decision_is_taken_back_with_its_proposal(
    made: Callable[[Calls], Talk],
) -> None:
    talk = made([("pay", {"cents": 5})])
    run_id = talk.start()
    talk.go_on()
    assert talk.stands == ("paused", "waiting_approval")

    talk.client.interrupt(run_id)
    assert talk.stands == WAITS_FOR_USER
    talk.client.say(run_id, "do not pay")
    assert talk.go_on() is RunStatus.COMPLETED

    assert talk.states == ["rejected"]
    assert [each.status for each in talk.client.approvals(status=None)] == ["cancelled"]


def test_an_approved_call_that_nobody_has_begun_is_not_made(
    made: Callable[[Calls], Talk],
) -> None:
    talk = made([("pay", {"cents": 5})])
    run_id = talk.start()
    talk.go_on()
    (proposal,) = talk.client.approvals(by="bob")
    talk.client.approve(proposal.approval_id, by="bob")
    talk.client.interrupt(run_id)

    talk.client.say(run_id, "do not pay")
    assert talk.go_on() is RunStatus.COMPLETED

    assert talk.states == ["rejected"]
    assert [each.status for each in talk.client.approvals(status=None)] == ["revoked"]


def test_a_decision_during_an_interrupt_is_kept_and_does_not_let_the_run_go_on(
    made: Callable[[Calls], Talk],
) -> None:
    talk = made([("pay", {"cents": 5})])
    run_id = talk.start()
    talk.go_on()
    talk.client.interrupt(run_id)
    (proposal,) = talk.client.approvals(by="bob")

    talk.client.approve(proposal.approval_id, by="bob")

    assert (talk.stands, talk.states) == (WAITS_FOR_USER, ["approved"])


def test_a_call_that_is_certainly_not_done_is_not_tried_again(
    made: Callable[[Calls], Talk],
) -> None:
    talk = made([("flaky", {})])
    run_id = talk.start()
    talk.go_on()
    assert (talk.stands, talk.states) == (("paused", "waiting_timer"), ["not_done"])

    talk.client.interrupt(run_id)
    talk.client.say(run_id, "leave it")
    assert talk.go_on() is RunStatus.COMPLETED

    assert talk.states == ["failed"]
    assert "is not made again" in talk.shown[-1][-2]


def test_an_interrupted_run_lets_the_next_one_of_its_thread_go(talk: Talk) -> None:
    first = talk.client.start("talker", "one", thread_id="t1").run_id
    second = talk.client.start("talker", "two", thread_id="t1").run_id
    talk.client.interrupt(first)
    assert talk.worker.row(second).status == RunStatus.QUEUED

    status = talk.client.say(first, "go on")

    assert status is RunStatus.PAUSED, "it waits for its turn now"
    assert talk.worker.row(first).phase == "waiting_thread"


def test_an_interrupted_run_can_be_cancelled(talk: Talk) -> None:
    run_id = talk.start()
    talk.client.interrupt(run_id)

    assert talk.client.cancel(run_id) is RunStatus.CANCELLED


def test_interrupting_twice_changes_nothing(talk: Talk) -> None:
    run_id = talk.start()
    talk.client.interrupt(run_id)
    events = talk.events

    assert talk.client.interrupt(run_id) is RunStatus.PAUSED

    assert talk.events == events


def test_what_has_ended_or_is_unknown_cannot_be_interrupted(talk: Talk) -> None:
    talk.client.cancel(talk.start())

    with pytest.raises(Conflict, match="is cancelled: there is nothing to interrupt"):
        talk.client.interrupt(talk.run_id)
    with pytest.raises(UnknownRun):
        talk.client.interrupt("nobody")


# A model that is being asked ----------------------------------------------------------------------


class Thinking:
    """A run whose model hangs at a real server, in a step that another thread takes."""

    def __init__(self, database: Database, broker_url: str, server: ProviderServer) -> None:
        self.server = server
        self.worker = Worker(database.url, broker_url, [Agent("slow", server.model())])
        self.worker.process.start()
        self.run_id = self.worker.start("slow")
        self.step = threading.Thread(target=self.worker.step, args=(self.run_id,))
        self.step.start()
        eventually(lambda: len(server.requests) == 1, what="the model is asked")

    def close(self) -> None:
        self.step.join(10)
        self.worker.process.stop()


@pytest.fixture
def thinking(database: Database, broker_url: str) -> Iterator[Thinking]:
    with ProviderServer([Reply.hanging(60), Reply.text("done")]) as server:
        thinking = Thinking(database, broker_url, server)
        yield thinking
        thinking.close()


@pytest.mark.parametrize("ask", ["cancel", "interrupt"])
def test_a_request_to_the_model_is_really_cancelled(
    thinking: Thinking, database: Database, ask: str
) -> None:
    with Client(database.url) as client:
        status = getattr(client, ask)(thinking.run_id)
        assert status is RunStatus.RUNNING
        assert thinking.server.wait_until_idle(), "the server's connection is still open"
        thinking.step.join(2.0)
        assert not thinking.step.is_alive()

        row = thinking.worker.row(thinking.run_id)
        assert (row.status, row.phase) == (
            ("cancelled", None) if ask == "cancel" else ("paused", "waiting_user")
        )
        assert model_calls(database, thinking.run_id) == [(0, 1, "interrupted")]
        if ask == "interrupt":
            client.say(thinking.run_id, "go on")
            while thinking.worker.row(thinking.run_id).status == RunStatus.QUEUED:
                thinking.worker.step(thinking.run_id)
            assert thinking.worker.row(thinking.run_id).result == "done"
            assert model_calls(database, thinking.run_id) == [
                (0, 1, "interrupted"),
                (1, 1, "answered"),
            ]


def model_calls(database: Database, run_id: RunId) -> list[tuple[int, int, str]]:
    with database.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT step, attempt, outcome FROM celeriac.model_calls WHERE run_id = %s"
            " ORDER BY step, attempt",
            (run_id,),
        )
        return [(row[0], row[1], row[2]) for row in rows]
