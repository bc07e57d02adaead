"""The code's tables of states and the database's triggers and constraints are the same tables."""

# features: 002-06, 000-08
from collections.abc import Iterator
from itertools import product

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celeriac.ids import CallId, RunId
from celeriac.states import (
    EFFECT_TRANSITIONS,
    PHASES,
    RUN_TRANSITIONS,
    EffectKind,
    EffectState,
    Phase,
    RunStatus,
)
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.step_record import Next
from tests.steps_by_hand import Hand

ILLEGAL_TRANSITION = "CE002"
CHECK_VIOLATION = "23514"
ENDINGS = {
    RunStatus.COMPLETED: Next(RunStatus.COMPLETED, outcome="completed", result="done"),
    RunStatus.FAILED: Next.failed("model_failed", {"kind": "timeout", "message": "no answer"}),
    RunStatus.CANCELLED: Next.cancelled(),
}


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    with database.connect() as connection:
        yield connection


@pytest.fixture
def hand(database: Database) -> Hand:
    return Hand(database)


def accepts(connection: Connection, constraint: str, **values: str | None) -> bool:
    """Whether the check constraint lets a row with these values in, as PostgreSQL sees it: a check
    that comes out as null is not violated."""
    expression = connection.exec_driver_sql(
        "SELECT pg_get_expr(conbin, conrelid) FROM pg_constraint WHERE conname = %s", (constraint,)
    ).scalar_one()
    columns = ", ".join(f"%({name})s::text AS {name}" for name in values)
    return bool(
        connection.exec_driver_sql(
            f"SELECT ({expression}) IS NOT FALSE FROM (SELECT {columns}) AS one", values
        ).scalar_one()
    )


def test_each_run_transition_is_legal_in_both_or_neither(connection: Connection) -> None:
    pairs = connection.exec_driver_sql(
        "SELECT was, now_is FROM unnest(%(all)s::text[]) AS was, unnest(%(all)s::text[]) AS now_is"
        " WHERE celeriac.run_may_become(was, now_is)",
        {"all": [status.value for status in RunStatus]},
    )

    found = {(RunStatus(was), RunStatus(now_is)) for was, now_is in pairs if was != now_is}

    assert found == {
        (was, now_is) for was, following in RUN_TRANSITIONS.items() for now_is in following
    }


def test_each_effect_transition_is_legal_in_both_or_neither(connection: Connection) -> None:
    pairs = connection.exec_driver_sql(
        "SELECT was, now_is FROM unnest(%(all)s::text[]) AS was, unnest(%(all)s::text[]) AS now_is"
        " WHERE celeriac.effect_may_become(was, now_is)",
        {"all": [state.value for state in EffectState]},
    )

    found = {(EffectState(was), EffectState(now_is)) for was, now_is in pairs}

    assert found == {
        (was, now_is) for was, following in EFFECT_TRANSITIONS.items() for now_is in following
    }


def test_each_status_may_have_the_same_phases_in_both(connection: Connection) -> None:
    allowed = {
        (status, phase)
        for status, phase in product(RunStatus, [None, *Phase])
        if accepts(connection, "runs_phase", status=status, phase=phase)
    }

    assert allowed == {
        (status, phase) for status in RunStatus for phase in PHASES[status] or {None}
    }


def test_a_result_stands_with_completed_alone_and_an_error_never_beside_it(
    connection: Connection,
) -> None:
    allowed = {
        (status, bool(result), bool(error))
        for status, result, error in product(RunStatus, [None, "1"], [None, "{}"])
        if accepts(connection, "runs_result", status=status, result=result, erased_at=None)
        and accepts(connection, "runs_error", status=status, error=error, erased_at=None)
    }

    needs_error = {RunStatus.FAILED, RunStatus.NEEDS_ATTENTION}  # a rejection is a failure
    assert {each for each in allowed if each[1]} == {(RunStatus.COMPLETED, True, False)}
    assert {status for status, _, error in allowed if not error} == set(RunStatus) - needs_error
    assert (RunStatus.COMPLETED, False, False) not in allowed


def test_the_terminal_statuses_are_the_ones_that_nothing_follows() -> None:
    assert {status for status in RunStatus if status.is_terminal} == set(ENDINGS)


@pytest.mark.parametrize("status", ENDINGS)
def test_a_terminal_status_stays_and_so_does_all_of_its_row(hand: Hand, status: RunStatus) -> None:
    run_id = hand.start()
    hand.finish(hand.claim(run_id), ENDINGS[status])
    before = hand.row(run_id)

    for change in ("status = 'queued', phase = 'waiting_model'", "priority = 7", "step = step + 1"):
        assert refusal(hand, change, run_id) == ILLEGAL_TRANSITION

    assert hand.row(run_id) == before


@pytest.mark.parametrize(
    "change",
    [
        "tenant_id = 'other'",
        "user_id = 'bob'",
        "thread_id = 'another'",
        "agent = 'cook'",
        "kind = 'workflow'",
        "parent_run_id = run_id",
        "input = '{}'",
        "step = step - 1",
        "epoch = epoch - 1",
        "last_event_seq = 0",
    ],
)
def test_a_runs_owner_agent_kind_input_and_history_never_change(hand: Hand, change: str) -> None:
    # features: 002-03
    run_id = hand.start()
    hand.ask_for_calls(run_id)

    assert refusal(hand, change, run_id) == "CE003"


def test_what_no_status_is_called_is_refused(hand: Hand) -> None:
    run_id = hand.start()

    assert refusal(hand, "status = 'done'", run_id) == ILLEGAL_TRANSITION
    with hand.database.connect() as connection:
        assert not accepts(connection, "runs_phase", status="done", phase=None)


@pytest.mark.parametrize(
    "change",
    [
        "claim_token = NULL",
        "worker_id = NULL",
        "finished_at = now()",
        "result = '1'",
        "resume_phase = 'waiting_model'",
        "phase = NULL",
        "phase = 'waiting_user'",
    ],
)
def test_what_a_running_run_may_not_be_is_refused(hand: Hand, change: str) -> None:
    # features: 000-08
    run_id = hand.start()
    hand.claim(run_id)

    assert refusal(hand, change, run_id) == CHECK_VIOLATION


def test_the_arguments_of_a_call_are_frozen_once_it_is_planned(hand: Hand) -> None:
    run_id = hand.start()
    (call,) = hand.ask_for_calls(run_id)

    assert effect_refusal(hand, "state = 'in_flight', arguments = '{}'", run_id, call) == "CE003"
    assert effect_refusal(hand, "state = 'in_flight', fingerprint = ''", run_id, call) == "CE003"


def test_the_database_knows_the_same_effect_states_and_kinds(connection: Connection) -> None:
    states = {state for state in EffectState if accepts(connection, "effects_state", state=state)}
    kinds = {kind for kind in EffectKind if accepts(connection, "effects_kind_check", kind=kind)}

    assert states == set(EffectState)
    assert kinds == set(EffectKind)
    assert not accepts(connection, "effects_state", state="done")
    assert not accepts(connection, "effects_kind_check", kind="read")


def refusal(hand: Hand, change: str, run_id: RunId) -> str | None:
    """The code with which the database refuses to change the run so."""
    with pytest.raises(DBAPIError) as refused, hand.database.connect() as connection:
        connection.exec_driver_sql(
            f"UPDATE celeriac.runs SET {change} WHERE run_id = %s", (run_id,)
        )
    return sqlstate(refused.value)


def effect_refusal(hand: Hand, change: str, run_id: RunId, call: CallId) -> str | None:
    with pytest.raises(DBAPIError) as refused, hand.database.connect() as connection:
        connection.exec_driver_sql(
            f"UPDATE celeriac.effects SET {change} WHERE run_id = %s AND call_id = %s",
            (run_id, call),
        )
    return sqlstate(refused.value)
