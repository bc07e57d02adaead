"""A person settles a call whose outcome nobody knows, or lets a run go on."""

from collections.abc import Callable

import pytest
from pydantic import BaseModel, ConfigDict, Field

from celeriac import tool
from celeriac.codec import JsonValue
from celeriac.errors import Conflict, InvalidInput, UnknownCall, UnknownRun
from celeriac.ids import CallId, RunId, ThreadId
from celeriac.states import EffectState, Phase, RunStatus
from celeriac_storage import artifacts, claims, effects
from celeriac_storage.agents import register_agent
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.requests import request_cancel
from celeriac_storage.resolving import NotDone, Resolution, TookEffect, resolve, retry
from tests.steps_by_hand import AGENT, ALICE, Hand, definition


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


def settle(hand: Hand, run_id: RunId, call: CallId, resolution: Resolution) -> RunStatus:
    with hand.database.begin() as connection:
        return resolve(connection, run_id, call, resolution, ALICE)


def test_a_call_that_took_effect_is_committed_with_the_persons_result(hand: Hand) -> None:
    run_id, call = hand.unknown_effect()

    assert settle(hand, run_id, call, TookEffect({"shipment": 12})) is RunStatus.QUEUED

    effect = hand.effect(run_id, call)
    assert (effect.state, effect.result, effect.error) == ("committed", {"shipment": 12}, None)
    assert hand.attempts(run_id, call)[-1] == (1, 2, "committed", {"by": "alice"})
    assert hand.event_data(run_id, "effect.resolved") == {
        "call_id": call,
        "tool": "ship",
        "state": "committed",
        "by": "alice",
    }


def test_what_the_tool_itself_writes_is_a_result_that_a_person_can_tell(hand: Hand) -> None:
    class Shipment(BaseModel):
        model_config = ConfigDict(extra="forbid")
        number: int = Field(serialization_alias="shipment")

    @tool(effect="external")
    def ship(order: int) -> Shipment:
        """Ship it."""
        raise NotImplementedError

    with hand.database.begin() as connection:
        tools: list[JsonValue] = [ship.registration()]
        register_agent(connection, AGENT, "hash-2", {**definition(AGENT), "tools": tools})
    run_id, call = hand.unknown_effect()

    with pytest.raises(InvalidInput, match="number: required, but missing"):
        settle(hand, run_id, call, TookEffect({}))
    settle(hand, run_id, call, TookEffect({"shipment": 12}))

    assert hand.effect(run_id, call).result == {"shipment": 12}


def test_a_resolved_run_goes_on_where_its_last_step_left_it(hand: Hand) -> None:
    run_id, call = hand.unknown_effect()

    settle(hand, run_id, call, TookEffect(None))

    row = hand.row(run_id)
    assert (row.status, row.phase, row.error, row.strikes) == ("queued", "waiting_tool", None, 0)
    assert row.published_at is None  # so that the scheduler publishes it
    claim = hand.claim(run_id)
    assert claim.state["pending"] == [call]
    assert _load(hand, claim, call).result is None
    assert _load(hand, claim, call).state is EffectState.COMMITTED


def test_a_call_that_was_not_done_is_made_again_under_the_same_key(hand: Hand) -> None:
    run_id, call = hand.unknown_effect()

    assert settle(hand, run_id, call, NotDone()) is RunStatus.QUEUED

    assert hand.effect(run_id, call).state == EffectState.NOT_DONE
    hand.begin_call(run_id, call)
    assert [entry[:3] for entry in hand.attempts(run_id, call)] == [
        (1, 0, "started"),
        (1, 1, "unknown"),
        (1, 2, "not_done"),
        (2, 0, "started"),
    ]


def test_the_persons_result_may_be_large(hand: Hand) -> None:
    run_id, call = hand.unknown_effect()
    report = "x" * (artifacts.LARGEST_ROW_VALUE_BYTES + 1)

    settle(hand, run_id, call, TookEffect(report))

    assert hand.effect(run_id, call).result is None
    assert _load(hand, hand.claim(run_id), call).result == report


def test_a_call_is_resolved_once(hand: Hand) -> None:
    run_id, call = hand.unknown_effect()
    settle(hand, run_id, call, TookEffect("first"))

    with pytest.raises(Conflict, match=r"is committed: only a call whose outcome is unknown"):
        settle(hand, run_id, call, NotDone())

    assert hand.effect(run_id, call).result == "first"


def test_a_call_in_flight_is_not_for_a_person_to_settle(hand: Hand) -> None:
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    hand.begin_call(run_id, call)

    with pytest.raises(Conflict, match="is running: a worker is making its calls"):
        settle(hand, run_id, call, NotDone())

    assert hand.effect(run_id, call).state == EffectState.IN_FLIGHT


def test_who_settles_a_call_of_a_running_run_never_waits_for_its_step(hand: Hand) -> None:
    """A transactional one holds its effect when it comes to lock the run."""
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    claim = hand.claim(run_id)

    with hand.database.begin() as step:
        effects.begin_transactional(step, claim, call, timeout_seconds=60)
        with hand.database.begin() as person:
            person.exec_driver_sql("SET LOCAL lock_timeout = '2s'")  # instead of for ever
            with pytest.raises(Conflict, match=f"celeriac interrupt {run_id}"):
                resolve(person, run_id, call, NotDone(), ALICE)
        step.rollback()


def test_a_call_left_in_flight_by_a_killer_step_is_first_found_by_a_retry(hand: Hand) -> None:
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    claim = hand.begin_call(run_id, call)
    _give_back(hand, claim)
    hand.poisoned(run_id)

    with pytest.raises(Conflict, match=f"celeriac retry {run_id}"):
        settle(hand, run_id, call, NotDone())

    with hand.database.begin() as connection:
        assert retry(connection, run_id, ALICE) is RunStatus.QUEUED


def test_what_does_not_exist_cannot_be_resolved(hand: Hand) -> None:
    run_id, call = hand.unknown_effect()

    with pytest.raises(UnknownRun, match="no run nosuch"):
        settle(hand, RunId("nosuch"), call, NotDone())
    with pytest.raises(UnknownCall, match=rf"no call 9\.9 \(outcome unknown: {call}\)"):
        settle(hand, run_id, CallId("9.9"), NotDone())

    assert hand.row(run_id).status == RunStatus.NEEDS_ATTENTION


def test_a_cancelled_run_stays_cancelled_when_its_call_is_resolved(hand: Hand) -> None:
    run_id, call = hand.unknown_effect()
    with hand.database.begin() as connection:
        request_cancel(connection, run_id, ALICE)
    before = hand.row(run_id)

    assert settle(hand, run_id, call, NotDone()) is RunStatus.CANCELLED

    assert hand.effect(run_id, call).state == EffectState.NOT_DONE
    assert hand.attempts(run_id, call)[-1] == (1, 2, "not_done", {"by": "alice"})
    assert hand.row(run_id) == before


def test_a_retry_forgives_the_strikes(hand: Hand) -> None:
    run_id = hand.poisoned()

    with hand.database.begin() as connection:
        assert retry(connection, run_id, ALICE) is RunStatus.QUEUED

    row = hand.row(run_id)
    assert (row.status, row.phase, row.strikes, row.error) == ("queued", "waiting_model", 0, None)
    assert hand.event_data(run_id, "run.retried") == {"by": "alice"}
    hand.complete(run_id)


def test_a_retry_goes_back_to_the_phase_of_the_latest_checkpoint(hand: Hand) -> None:
    run_id = hand.start()
    hand.ask_for_calls(run_id)
    hand.poisoned(run_id)

    with hand.database.begin() as connection:
        retry(connection, run_id, ALICE)

    assert hand.row(run_id).phase == Phase.WAITING_TOOL


def test_a_retry_never_repeats_a_call_of_unknown_outcome(hand: Hand) -> None:
    run_id, call = hand.unknown_effect()

    with (
        pytest.raises(Conflict, match=f"celeriac resolve {run_id} {call} --committed"),
        hand.database.begin() as connection,
    ):
        retry(connection, run_id, ALICE)

    assert hand.row(run_id).status == RunStatus.NEEDS_ATTENTION
    assert hand.effect(run_id, call).state == EffectState.UNKNOWN


@pytest.mark.parametrize("way", ["resolve", "retry"])
def test_a_run_whose_thread_has_moved_on_waits_for_its_turn(hand: Hand, way: str) -> None:
    thread_id = ThreadId("t1")
    run_id, go_on = _put_before_a_person(hand, thread_id, way)
    active, waiting = hand.start(thread_id=thread_id), hand.start(thread_id=thread_id)
    assert hand.row(active).status == RunStatus.QUEUED

    assert go_on() is RunStatus.PAUSED

    row = hand.row(run_id)
    assert (row.phase, row.strikes, row.error) == ("waiting_thread", 0, None)
    assert hand.event_data(run_id, "run.paused") == {"phase": "waiting_thread"}
    kept = row.resume_phase
    hand.complete(active)
    assert (hand.row(run_id).status, hand.row(run_id).phase) == ("queued", kept)
    assert hand.row(waiting).phase == Phase.WAITING_THREAD, "whoever came first goes first"


@pytest.mark.parametrize("way", ["resolve", "retry"])
def test_a_run_whose_thread_is_free_goes_on_at_once(hand: Hand, way: str) -> None:
    thread_id = ThreadId("t1")
    run_id, go_on = _put_before_a_person(hand, thread_id, way)
    hand.complete(hand.start(thread_id=thread_id))

    assert go_on() is RunStatus.QUEUED

    assert hand.row(run_id).status == RunStatus.QUEUED


def test_of_two_runs_of_a_thread_that_are_retried_at_once_one_is_active(hand: Hand) -> None:
    thread_id = ThreadId("t1")
    first = hand.poisoned(hand.start(thread_id=thread_id))
    second = hand.poisoned(hand.start(thread_id=thread_id))

    with hand.database.begin() as connection:
        assert retry(connection, first, ALICE) is RunStatus.QUEUED
        with hand.database.begin() as other:  # which cannot see the first one's change yet
            assert retry(other, second, ALICE) is RunStatus.PAUSED

    assert [hand.row(run).status for run in (first, second)] == ["queued", "paused"]


def _put_before_a_person(
    hand: Hand, thread_id: ThreadId, way: str
) -> tuple[RunId, Callable[[], RunStatus]]:
    """A run in `needs_attention`, and how to let it go on."""
    run_id = hand.start(thread_id=thread_id)
    if way == "retry":
        hand.poisoned(run_id)
    else:
        (call,) = hand.ask_for_calls(run_id)
        hand.lose_outcome(hand.begin_call(run_id, call), call)

    def go_on() -> RunStatus:
        if way == "resolve":
            return settle(hand, run_id, call, NotDone())
        with hand.database.begin() as connection:
            return retry(connection, run_id, ALICE)

    return run_id, go_on


@pytest.mark.parametrize(
    ("ending", "said"),
    [("queued", "goes on without being told to"), ("completed", "start a new run instead")],
)
def test_only_a_run_that_needs_attention_is_retried(hand: Hand, ending: str, said: str) -> None:
    run_id = hand.start()
    if ending == "completed":
        hand.complete(run_id)

    with (
        pytest.raises(Conflict, match=f"is {ending} .*{said}"),
        hand.database.begin() as connection,
    ):
        retry(connection, run_id, ALICE)

    assert hand.row(run_id).status == ending


def _load(hand: Hand, claim: Claim, call: CallId) -> effects.Effect:
    with hand.database.connect() as connection:
        (effect,) = effects.load(connection, claim.run_id, [call])
    return effect


def _give_back(hand: Hand, claim: Claim) -> None:
    with hand.database.connect() as connection:
        assert claims.release(connection, claim)
