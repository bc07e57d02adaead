"""Cancelling: at once where nobody works on the run, else by the step's own commit."""

import threading

import pytest

from celeriac.errors import Conflict, UnknownRun
from celeriac.ids import RunId, ThreadId
from celeriac.states import EffectState, Phase, RunStatus, StepKind
from celeriac_storage import claims, effects, resolving, steps, verdicts, waking, workers
from celeriac_storage.claims import STRIKES_BEFORE_ATTENTION, RequestsChanged
from celeriac_storage.database import Database
from celeriac_storage.requests import request_cancel
from celeriac_storage.resolving import TookEffect
from celeriac_storage.step_record import Next, StepRecord
from tests.steps_by_hand import ALICE, Hand


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


def cancel(hand: Hand, run_id: RunId) -> RunStatus:
    with hand.database.begin() as connection:
        return request_cancel(connection, run_id, ALICE)


def test_a_queued_run_is_cancelled_at_once(hand: Hand) -> None:
    run_id = hand.start()

    assert cancel(hand, run_id) is RunStatus.CANCELLED

    row = hand.row(run_id)
    assert (row.status, row.outcome, row.phase) == ("cancelled", "cancelled", None)
    assert row.finished_at is not None
    assert hand.events(run_id) == ["run.created", "run.cancelled"]
    assert hand.event_data(run_id, "run.cancelled") == {"outcome": "cancelled", "by": "alice"}


@pytest.mark.parametrize("phase", [Phase.WAITING_TIMER, Phase.WAITING_USER, Phase.WAITING_WORKER])
def test_a_paused_run_is_cancelled_at_once(hand: Hand, phase: Phase) -> None:
    run_id = hand.start()
    hand.finish(hand.claim(run_id), Next(RunStatus.PAUSED, phase, resume_phase=Phase.WAITING_MODEL))

    assert cancel(hand, run_id) is RunStatus.CANCELLED

    assert hand.row(run_id).resume_phase is None
    assert hand.events(run_id)[-1] == "run.cancelled"


def test_the_end_of_a_cancelled_run_wakes_the_next_of_its_thread(hand: Hand) -> None:
    thread_id = ThreadId("t1")
    first, second = hand.start(thread_id=thread_id), hand.start(thread_id=thread_id)
    assert hand.row(second).phase == Phase.WAITING_THREAD

    cancel(hand, first)

    assert hand.row(second).status == RunStatus.QUEUED


def test_cancelling_a_run_in_line_leaves_the_line_as_it_is(hand: Hand) -> None:
    thread_id = ThreadId("t1")
    first, second, third = (hand.start(thread_id=thread_id) for _ in range(3))

    cancel(hand, second)

    assert [hand.row(run).status for run in (first, second, third)] == [
        "queued",
        "cancelled",
        "paused",
    ]
    cancel(hand, first)
    assert hand.row(third).status == RunStatus.QUEUED


def test_cancelling_a_run_in_line_never_deadlocks_with_the_end_of_the_active_one(
    hand: Hand,
) -> None:
    # The end of the active run locks the thread and then the waiting run. A cancel that held the
    # waiting run and then asked for the thread would meet it head-on.
    thread_id = ThreadId("t1")
    active, waiting = hand.start(thread_id=thread_id), hand.start(thread_id=thread_id)
    with hand.database.begin() as connection:
        connection.exec_driver_sql(
            "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (waiting,)
        )
        ending = threading.Thread(target=cancel, args=(hand, active))
        ending.start()
        _wait_until_somebody_waits_for_a_lock(hand)  # it holds the thread and wants our run
        request_cancel(connection, waiting, ALICE)
    ending.join(10)

    assert not ending.is_alive()
    assert [hand.row(run).status for run in (active, waiting)] == ["cancelled", "cancelled"]


def _wait_until_somebody_waits_for_a_lock(hand: Hand) -> None:
    for _ in range(1000):
        with hand.database.connect() as connection:
            waiting = connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).scalar_one()
        if waiting:
            return
        threading.Event().wait(0.01)
    pytest.fail("nobody ever waited for a lock")


def test_a_running_run_is_asked_and_its_commit_keeps_what_was_done(hand: Hand) -> None:
    run_id = hand.start()
    claim = hand.claim(run_id)

    assert cancel(hand, run_id) is RunStatus.RUNNING

    row = hand.row(run_id)
    assert (row.status, row.request_version) == ("running", 1)
    assert row.claim_token is not None
    assert row.cancel_requested_at is not None
    with pytest.raises(RequestsChanged) as changed:
        hand.finish(claim, Next.queued(Phase.WAITING_MODEL))
    assert changed.value.claim.is_cancel_requested
    hand.finish(changed.value.claim, Next.cancelled())
    assert hand.row(run_id).status == RunStatus.CANCELLED
    assert hand.row(run_id).message_count == 2  # the model's answer is not lost
    assert hand.events(run_id) == ["run.created", "run.cancel_requested", "run.cancelled"]


def test_no_external_call_begins_after_a_cancel(hand: Hand) -> None:
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    claim = hand.claim(run_id)

    cancel(hand, run_id)

    with pytest.raises(RequestsChanged), hand.database.connect() as connection:
        effects.begin_attempt(connection, claim, call, timeout_seconds=30)
    assert hand.effect(run_id, call).state == EffectState.PLANNED


def test_asking_twice_is_asking_once(hand: Hand) -> None:
    run_id = hand.start()
    hand.claim(run_id)

    cancel(hand, run_id)
    assert cancel(hand, run_id) is RunStatus.RUNNING

    assert hand.row(run_id).request_version == 1
    assert hand.events(run_id) == ["run.created", "run.cancel_requested"]


def test_cancelling_a_cancelled_run_changes_nothing(hand: Hand) -> None:
    run_id = hand.start()
    cancel(hand, run_id)
    before = hand.row(run_id)

    assert cancel(hand, run_id) is RunStatus.CANCELLED

    assert hand.row(run_id) == before


def test_a_finished_run_cannot_be_cancelled_and_the_error_says_what_it_is(hand: Hand) -> None:
    run_id = hand.start()
    hand.complete(run_id)

    with pytest.raises(Conflict, match="is completed already"):
        cancel(hand, run_id)

    assert hand.row(run_id).status == RunStatus.COMPLETED


def test_an_unknown_run_cannot_be_cancelled(hand: Hand) -> None:
    with pytest.raises(UnknownRun, match="no run nosuch"):
        cancel(hand, RunId("nosuch"))


def test_a_call_lost_in_flight_is_unknown_when_its_run_is_cancelled(hand: Hand) -> None:
    # Its worker died and the step is queued again. The cancel comes before anybody claims it, so
    # no step is left that could find the call in flight.
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    hand.begin_call(run_id, call)
    _take_back_from_dead_worker(hand, run_id)

    assert cancel(hand, run_id) is RunStatus.CANCELLED

    assert hand.effect(run_id, call).state == EffectState.UNKNOWN
    assert [entry[:3] for entry in hand.attempts(run_id, call)] == [
        (1, 0, "started"),
        (1, 1, "unknown"),
    ]
    assert hand.events(run_id)[-2:] == ["effect.unknown", "run.cancelled"]


def _take_back_from_dead_worker(hand: Hand, run_id: RunId) -> None:
    with hand.database.begin() as connection:
        assert verdicts.declare_dead(connection, hand.worker_id, "lease")
        verdicts.recover(connection)
    assert hand.row(run_id).status == RunStatus.QUEUED


def test_a_cancel_is_heeded_by_the_strike_that_leaves_the_run_to_nobody(hand: Hand) -> None:
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)
    hand.begin_call(run_id, call)
    _overdue(hand, run_id, strikes=STRIKES_BEFORE_ATTENTION - 1)
    assert cancel(hand, run_id) is RunStatus.RUNNING

    with hand.database.begin() as connection:
        assert verdicts.take_back_overdue(connection) == []

    row = hand.row(run_id)
    assert (row.status, row.outcome, row.error) == ("cancelled", "cancelled", None)
    assert hand.effect(run_id, call).state == EffectState.UNKNOWN
    assert hand.events(run_id)[-4:] == [
        "run.cancel_requested",
        "run.needs_attention",  # what it would have been, with the evidence
        "effect.unknown",
        "run.cancelled",
    ]


def test_a_strike_that_is_not_the_last_leaves_a_cancel_to_the_next_step(hand: Hand) -> None:
    run_id = hand.start()
    hand.claim(run_id)
    _overdue(hand, run_id, strikes=0)
    cancel(hand, run_id)

    with hand.database.begin() as connection:
        assert [due.run_id for due in verdicts.take_back_overdue(connection)] == [run_id]

    assert hand.row(run_id).status == RunStatus.QUEUED
    assert hand.claim(run_id).is_cancel_requested


def test_a_cancel_that_no_worker_is_left_to_heed_is_heeded_all_the_same(hand: Hand) -> None:
    asked, other = hand.start(), hand.start()
    for run_id in (asked, other):
        claim = hand.claim(run_id)
        if run_id == asked:
            cancel(hand, run_id)
        with hand.database.begin() as connection:
            claims.release(connection, claim)
    with hand.database.begin() as connection:
        workers.stop(connection, hand.worker_id)
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET published_at = published_at - interval '3 s'"
        )

        assert waking.park_without_worker(connection) == 2

    assert hand.row(asked).status == RunStatus.CANCELLED
    assert hand.events(asked)[-1] == "run.cancelled"
    assert (hand.row(other).status, hand.row(other).phase) == ("paused", "waiting_worker")


def _overdue(hand: Hand, run_id: RunId, strikes: int) -> None:
    with hand.database.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET strikes = %s, step_deadline = now() - interval '1 s'"
            " WHERE run_id = %s",
            (strikes, run_id),
        )


def test_cancelling_keeps_an_unknown_effect_unknown_until_somebody_resolves_it(hand: Hand) -> None:
    run_id, call = hand.unknown_effect()

    assert cancel(hand, run_id) is RunStatus.CANCELLED

    assert hand.effect(run_id, call).state == EffectState.UNKNOWN
    assert hand.row(run_id).error is None
    with hand.database.begin() as connection:
        status = resolving.resolve(connection, run_id, call, TookEffect({"id": 1}), ALICE)
    assert status is RunStatus.CANCELLED
    assert hand.effect(run_id, call).state == EffectState.COMMITTED
    assert hand.events(run_id)[-1] == "run.cancelled"


def test_a_cancel_that_meets_a_commit_waits_for_it(hand: Hand) -> None:
    run_id = hand.start()
    claim = hand.claim(run_id)
    outcome: list[object] = []

    def ask() -> None:
        try:
            outcome.append(cancel(hand, run_id))
        except Conflict as conflict:
            outcome.append(conflict)

    asking = threading.Thread(target=ask)
    with hand.database.begin() as connection:
        steps.commit(
            connection,
            claim,
            StepRecord(
                Next(RunStatus.COMPLETED, outcome="completed", result="done"),
                StepKind.THINK,
                "terminal",
            ),
        )
        asking.start()
        _wait_until_somebody_waits_for_a_lock(hand)
    asking.join(10)

    assert isinstance(outcome[0], Conflict)
    assert hand.row(run_id).status == RunStatus.COMPLETED
