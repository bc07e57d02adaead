"""Tools that another process executes: requested once, waited for with nothing held, and each
result taken once."""

# features: 002-31, 004-23, 004-24, 004-26
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from celeriac import Approval, ToolContext, external_tool
from celeriac.client import Failed
from celeriac.errors import Conflict, InvalidAgent, UnknownCall, UnknownRun
from celeriac.ids import effect_key
from celeriac.states import RunStatus
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.resolving import TookEffect
from celeriac_tasks import requesting
from celeriac_tasks.requesting import is_requested
from tests.talk import Calls, Talk

WAITS = ("paused", "waiting_external")
TWO_SCANS: Calls = [("scan", {"shelf": "a"}), ("scan", {"shelf": "b"})]


@external_tool(approval=Approval())
def unlock(door: str) -> str:
    """Have somebody unlock a door."""
    return door


@pytest.fixture
def made(database: Database, broker_url: str) -> Iterator[Callable[[Calls], Talk]]:
    talks: list[Talk] = []

    def make(calls: Calls) -> Talk:
        talks.append(Talk(database, broker_url, calls, [unlock]))
        talks[-1].start()
        talks[-1].go_on()
        return talks[-1]

    yield make
    for talk in talks:
        talk.close()


@pytest.fixture
def talk(made: Callable[[Calls], Talk]) -> Talk:
    """A run that waits for the results of two calls, 0.0 and 0.1."""
    return made(TWO_SCANS)


def everything(talk: Talk) -> list[Any]:
    """All rows that a refused batch must leave as they are."""
    return [
        talk.query(f"SELECT * FROM celeriac.{table} ORDER BY 1, 2")
        for table in ("effects", "effect_attempts", "messages", "checkpoints")
    ]


def test_the_run_waits_for_both_results_and_holds_nothing(talk: Talk) -> None:
    assert talk.stands == WAITS
    assert (talk.row.claim_token, talk.worker.process.is_busy) == (None, False)
    assert talk.states == ["in_flight", "in_flight"]
    assert talk.events == [
        "run.created", "model.answered", "call.requested", "call.requested", "run.paused",
    ]  # fmt: skip
    talk.step()  # whatever message still comes
    assert (talk.stands, len(talk.shown)) == (WAITS, 1)


def test_another_process_is_told_what_to_do_and_under_which_key(talk: Talk) -> None:
    first, second = talk.client.requested_calls(talk.run_id)

    assert (first.call_id, first.tool, first.arguments) == ("0.0", "scan", {"shelf": "a"})
    assert second.arguments == {"shelf": "b"}
    assert first.key == effect_key(talk.row.tenant_id, talk.run_id, first.call_id)
    assert talk.client.requested_calls() == [first, second]


def test_with_all_results_the_run_goes_on_and_the_model_is_told_each(talk: Talk) -> None:
    status = talk.client.submit(talk.run_id, {"0.1": {"parcel": 2}, "0.0": Failed("it is empty")})

    assert status is RunStatus.QUEUED
    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.states == ["failed", "committed"]
    assert talk.shown[-1][-2:] == ["it is empty", "{'parcel': 2}"]
    assert talk.client.requested_calls() == []


def test_results_may_come_one_by_one_and_the_last_one_wakes_the_run(talk: Talk) -> None:
    assert talk.client.submit(talk.run_id, {"0.1": 2}) is RunStatus.PAUSED
    assert talk.states == ["in_flight", "committed"]

    assert talk.client.submit(talk.run_id, {"0.0": 1}) is RunStatus.QUEUED

    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[-1][-2:] == ["1", "2"]


@pytest.mark.parametrize("result", [None, {"b": 1.0, "a": [None, "x"]}, "text", "x" * 100_000])
def test_the_same_result_again_is_neither_news_nor_an_error(talk: Talk, result: Any) -> None:
    talk.client.submit(talk.run_id, {"0.0": result})
    before, events = everything(talk), talk.events

    assert talk.client.submit(talk.run_id, {"0.0": result}) is RunStatus.PAUSED

    assert (everything(talk), talk.events) == (before, events)


def test_a_replay_of_the_whole_transcript_adds_only_what_is_missing(talk: Talk) -> None:
    talk.client.submit(talk.run_id, {"0.0": 1})
    (kept, *_) = talk.query("SELECT result_hash FROM celeriac.effects WHERE call_id = '0.0'")

    talk.client.submit(talk.run_id, {"0.0": 1, "0.1": 2})

    assert talk.query("SELECT result_hash FROM celeriac.effects WHERE call_id = '0.0'") == [kept]
    assert talk.go_on() is RunStatus.COMPLETED


REFUSED: dict[str, tuple[Mapping[str, Any], type[Exception], str]] = {
    "another result": ({"0.0": 7, "0.1": 2}, Conflict, "with another result, which stays"),
    "an error instead": ({"0.0": Failed("no"), "0.1": 2}, Conflict, "with another result"),
    "an unknown call": ({"0.1": 2, "9.9": 1}, UnknownCall, r"waits for: 0\.1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_bad_result_refuses_the_whole_batch_and_is_recorded(talk: Talk, case: str) -> None:
    batch, kind, words = REFUSED[case]
    talk.client.submit(talk.run_id, {"0.0": 1})
    before = everything(talk)

    with pytest.raises(kind, match=words):
        talk.client.submit(talk.run_id, batch, by="mallory")

    assert everything(talk) == before
    assert talk.stands == WAITS
    assert talk.events[-1] == "results.refused"
    trail = talk.query("SELECT actor, action, outcome, detail ->> 'error' FROM celeriac.audit")
    assert [tuple(row) for row in trail] == [("mallory", "results.submit", "denied", kind.__name__)]


def test_old_results_that_are_replayed_later_resume_nothing(talk: Talk) -> None:
    talk.client.submit(talk.run_id, {"0.0": 1, "0.1": 2})
    assert talk.go_on() is RunStatus.COMPLETED
    asked = len(talk.shown)

    with pytest.raises(Conflict, match="is completed and takes no results"):
        talk.client.submit(talk.run_id, {"0.0": 7})

    assert (talk.go_on(), len(talk.shown)) == (RunStatus.COMPLETED, asked)
    assert talk.query("SELECT outcome FROM celeriac.audit")[0][0] == "denied"


def test_a_cancelled_run_takes_no_result_and_says_that_it_does_not_know(talk: Talk) -> None:
    assert talk.client.cancel(talk.run_id) is RunStatus.CANCELLED

    with pytest.raises(Conflict, match="is cancelled"):
        talk.client.submit(talk.run_id, {"0.0": 1})

    assert talk.states == ["unknown", "unknown"]
    assert talk.client.requested_calls() == []


def test_a_requested_call_is_submitted_and_not_resolved(talk: Talk) -> None:
    with pytest.raises(Conflict, match=f"celeriac submit {talk.run_id} 0.0 --result JSON"):
        talk.client.resolve(talk.run_id, "0.0", TookEffect(1))

    assert talk.states == ["in_flight", "in_flight"]


def test_an_unknown_run_is_refused(talk: Talk) -> None:
    with pytest.raises(UnknownRun):
        talk.client.submit("nobody", {"0.0": 1})


def test_of_two_that_submit_at_once_one_wins_and_the_other_is_told(talk: Talk) -> None:
    refused: list[Exception] = []
    together = threading.Barrier(2)

    def race(result: int) -> None:
        together.wait(5)
        try:
            talk.client.submit(talk.run_id, {"0.0": result, "0.1": result})
        except Conflict as error:
            refused.append(error)

    threads = [threading.Thread(target=race, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(refused) == 1
    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[-1][-1] == talk.shown[-1][-2], "both results are of the same batch"


# With other calls, requests and people -----------------------------------------------------------


def test_a_workers_own_call_comes_after_the_requested_one_it_follows(
    made: Callable[[Calls], Talk],
) -> None:
    talk = made([("scan", {"shelf": "a"}), ("note", {"text": "b"}), ("scan", {"shelf": "c"})])
    assert (talk.noted, talk.states) == ([], ["in_flight", "planned", "planned"])

    talk.client.submit(talk.run_id, {"0.0": 1})
    assert talk.go_on() is RunStatus.PAUSED
    assert (talk.noted, talk.states) == (["b"], ["committed", "committed", "in_flight"])

    talk.client.submit(talk.run_id, {"0.2": 3})
    assert talk.go_on() is RunStatus.COMPLETED
    assert talk.shown[-1][-3:] == ["1", "noted b", "3"]


def test_a_result_for_a_call_that_is_not_requested_yet_is_refused(
    made: Callable[[Calls], Talk],
) -> None:
    talk = made([("scan", {"shelf": "a"}), ("note", {"text": "b"}), ("scan", {"shelf": "c"})])

    with pytest.raises(Conflict, match="is planned, so nobody waits"):
        talk.client.submit(talk.run_id, {"0.2": 3})
    with pytest.raises(UnknownCall):
        talk.client.submit(talk.run_id, {"0.1": "a worker's own call"})


def test_what_is_said_meanwhile_follows_the_results(talk: Talk) -> None:
    assert talk.client.say(talk.run_id, "hurry") is RunStatus.PAUSED
    assert talk.stands == WAITS

    talk.client.submit(talk.run_id, {"0.0": 1, "0.1": 2})
    assert talk.go_on() is RunStatus.COMPLETED

    assert talk.shown[-1][-3:] == ["1", "2", "hurry"]


def test_what_another_process_has_begun_is_waited_for_even_after_an_interrupt(talk: Talk) -> None:
    talk.client.interrupt(talk.run_id)
    assert talk.client.submit(talk.run_id, {"0.0": 1}) is RunStatus.PAUSED
    assert talk.stands == ("paused", "waiting_user")

    talk.client.say(talk.run_id, "go on")
    assert (talk.go_on(), talk.stands) == (RunStatus.PAUSED, WAITS)
    talk.client.submit(talk.run_id, {"0.1": 2})
    assert talk.go_on() is RunStatus.COMPLETED

    assert talk.shown[-1][-3:] == ["1", "2", "go on"]


def test_a_cancel_during_a_step_leaves_no_call_in_flight(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its user has woken the run, and a step finds that the results are not there yet. The cancel
    # comes when that step has looked and not yet committed.
    talk.client.interrupt(talk.run_id)
    talk.client.say(talk.run_id, "go on")
    asked: list[RunStatus] = []

    def look(effect: Effect) -> bool:
        if not asked:
            asked.append(talk.client.cancel(talk.run_id))
        return is_requested(effect)

    monkeypatch.setattr(requesting, "is_requested", look)
    talk.step()

    assert asked == [RunStatus.RUNNING]
    assert (talk.row.status, talk.states) == ("cancelled", ["unknown", "unknown"])


def test_a_result_and_a_cancel_that_come_in_during_a_step_are_both_heeded(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.client.interrupt(talk.run_id)
    talk.client.say(talk.run_id, "go on")
    asked: list[RunStatus] = []

    def look(effect: Effect) -> bool:
        if not asked:
            talk.client.submit(talk.run_id, {"0.0": 1})
            asked.append(talk.client.cancel(talk.run_id))
        return is_requested(effect)

    monkeypatch.setattr(requesting, "is_requested", look)
    talk.step()

    assert (talk.row.status, talk.states) == ("cancelled", ["committed", "unknown"])
    assert talk.row.strikes == 0


def test_a_requested_call_needs_its_decision_like_any_other(made: Callable[[Calls], Talk]) -> None:
    talk = made([("unlock", {"door": "front"})])
    assert talk.stands == ("paused", "waiting_approval")
    assert talk.client.requested_calls() == []
    (proposal,) = talk.client.approvals(by="bob")

    talk.client.approve(proposal.approval_id, by="bob")
    talk.go_on()
    assert [call.arguments for call in talk.client.requested_calls()] == [{"door": "front"}]
    talk.client.submit(talk.run_id, {"0.0": "open"})

    assert talk.go_on() is RunStatus.COMPLETED


def test_a_tool_with_a_context_cannot_be_executed_elsewhere() -> None:
    def scan(ctx: ToolContext) -> str:
        """Scan."""
        return ctx.run_id

    with pytest.raises(InvalidAgent, match=r"tool 'scan': it has a ToolContext parameter"):
        external_tool(scan)
