"""What a person decides about a run in `needs_attention`: what came of a call, or to go on.

Such a run has let the next one of its thread go. So it goes on at once only if the thread is free,
and else waits for its turn.

Rows are locked in this order: the run, its effect, its thread.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps, stored_form
from celeriac.errors import Conflict, InvalidInput, UnknownCall
from celeriac.ids import CallId, RunId, UserId, WorkerId
from celeriac.rollback import Rollback
from celeriac.schemas import listed, problems_by_schema
from celeriac.states import EffectState, RunStatus
from celeriac_storage import lost_calls, news
from celeriac_storage.agents import latest_definition
from celeriac_storage.requests import erased, unknown_run
from celeriac_storage.settling import settle
from celeriac_storage.threads import wait_for_turn


@dataclass(frozen=True, slots=True)
class TookEffect:
    """The call did what it should. The model is told `result`, as if the tool had returned it."""

    result: JsonValue


@dataclass(frozen=True, slots=True)
class NotDone:
    """The call changed nothing, and certainly will not later. It is made again, key and all."""


Resolution = TookEffect | NotDone

_UNSETTLED = (EffectState.UNKNOWN, EffectState.KNOWN_BAD)
"""What only a person, the target or the call's own worker can settle."""


def resolve(
    connection: Connection, run_id: RunId, call_id: CallId, resolution: Resolution, by: UserId
) -> RunStatus:
    """Settle a call whose outcome is `unknown`; where the run stands then. Needs a transaction.

    A call that is `known_bad`, because its target does not show what the tool reported, can only be
    declared not done, once it is certain that it never will be: the model is told. Only an undo
    that is known_bad can be declared done as well, by hand.

    Of a run that has ended, a call that was found to be not done can be declared done: its own
    worker may have told so since, and no step comes that would find that.

    A run in `needs_attention` is queued again, with its strikes forgiven, unless another of its
    calls is still unknown; if another run of its thread is active, it is `paused` until that has
    ended. A run that has ended meanwhile, as by a cancel, stays what it is: only the effect is
    settled, and its attempt says by whom, since no event may follow the last one.

    In a rollback a person settles as well an undo that failed, that stands in the way of the rest,
    or that only people can do: done by hand, or never to be done.

    Raises `UnknownRun`, `UnknownCall`, `Conflict` if nobody waits for this answer, and
    `InvalidInput` for a result that is none of the tool's, as far as its schema says so.
    """
    status, agent = _lock(connection, run_id)
    if status is RunStatus.RUNNING:
        # A transactional step holds its effect, and locks the run at its commit: the other way.
        raise Conflict(
            f"run {run_id} is running: a worker is making its calls, or finding out what came of "
            "them, just now, and nobody has to settle one yet; wait until that is recorded, or say "
            f"`celeriac interrupt {run_id}`"
        )
    call = _lock_effect(connection, run_id, call_id)
    tool, state = call.tool, call.state
    is_done = isinstance(resolution, TookEffect)
    is_stuck_undo = call.is_stuck_undo and status is RunStatus.NEEDS_ATTENTION
    is_bad_for_good = state is EffectState.KNOWN_BAD and call.undo is None
    # No step comes any more that would find what the call's own worker may have told since.
    is_mistaken = is_done and state is EffectState.NOT_DONE and status.is_terminal
    if not (state in _UNSETTLED or is_stuck_undo or is_mistaken) or (is_done and is_bad_for_good):
        raise Conflict(_not_unknown(run_id, call_id, call, status))
    if not is_done and state in (EffectState.UNKNOWN, EffectState.NOT_DONE):
        _refuse_over_report(connection, run_id, call_id, call)
    if is_mistaken and call.undone and (undo := _undo(connection, *call.undone)):
        raise Conflict(
            f"call {call_id} ({tool}) of run {run_id} cannot be declared done: what it was to take "
            f"back is being taken back, or is already, by call {undo[1]} of run {undo[0]}"
        )
    if state is EffectState.KNOWN_BAD and (undo := _undo(connection, run_id, call_id)):
        raise Conflict(
            f"call {call_id} ({tool}) of run {run_id} is being undone, or is undone already, by "
            f"call {undo[1]} of run {undo[0]}: see that to its end (`celeriac show {undo[0]}`); a "
            f"run whose call is undone can be ended with `celeriac cancel {run_id}`"
        )
    if isinstance(resolution, TookEffect) and call.undo is None:
        _check_result(connection, agent, call.tool, resolution.result)
    settled, error = (EffectState.COMMITTED, None) if is_done else _not_done(call, by)
    settle(
        connection,
        run_id,
        state,
        settled,
        call_id=call_id,
        result=resolution.result if isinstance(resolution, TookEffect) else None,
        error=error,
        evidence={"by": by},
    )
    if status is not RunStatus.NEEDS_ATTENTION:
        return status
    event: dict[str, JsonValue] = {
        "call_id": call_id,
        "tool": tool,
        "state": settled.value,
        "by": by,
    }
    goes_on = not _unknown_calls(connection, run_id)
    return _note(connection, run_id, "effect.resolved", event, goes_on=goes_on)


def retry(connection: Connection, run_id: RunId, by: UserId) -> RunStatus:
    """Let a run in `needs_attention` try its step again, with its strikes forgiven; where it stands
    then: `queued`, or `paused` while another run of its thread is active. Needs a transaction.

    Raises `UnknownRun`, or `Conflict` if the run needs no attention, or first has to be told what
    came of a call: a retry must never be a way to repeat one silently.
    """
    status, _ = _lock(connection, run_id)
    if status is not RunStatus.NEEDS_ATTENTION:
        instead = (
            f"start a new run instead, or `celeriac fork {run_id} --at STEP`"
            if status.is_terminal
            else "it goes on without being told to"
        )
        raise Conflict(f"run {run_id} is {status} and does not need attention; {instead}")
    if unknown := _unknown_calls(connection, run_id):
        raise Conflict(
            f"run {run_id} cannot be retried before the outcome of {', '.join(unknown)} is known: "
            f"look at the target, then say `celeriac resolve {run_id} {unknown[0]} --committed "
            "JSON` or `--not-done`"
        )
    return _note(connection, run_id, "run.retried", {"by": by}, goes_on=True)


def go_on_with_report(connection: Connection, run_id: RunId, call_id: CallId, by: WorkerId) -> None:
    """Queue a run that waits for a person to say what came of this call, or what to do now that it
    is not to be made again, because the worker that made it has told after all
    (`lost_calls.report`). Needs a transaction. The step that follows finds the report and settles
    the call.
    """
    status = connection.exec_driver_sql(
        "SELECT status FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (run_id,)
    ).scalar_one()
    if status != RunStatus.NEEDS_ATTENTION:
        return
    call = _lock_effect(connection, run_id, call_id)
    is_awaited = call.state is EffectState.UNKNOWN and _unknown_calls(connection, run_id) == [
        call_id
    ]
    if is_awaited or (
        call.state is EffectState.PRECONDITION_FAILED and _stands_at(connection, run_id, call_id)
    ):
        reported: dict[str, JsonValue] = {"call_id": call_id, "tool": call.tool, "by": by}
        _note(connection, run_id, "effect.reported", reported, goes_on=True)


def _stands_at(connection: Connection, run_id: RunId, call_id: CallId) -> bool:
    """Whether the run needs attention because of what must hold before this call, of which its
    model has not been told yet, and the worker of its latest attempt has told that it took effect.
    """
    row = connection.exec_driver_sql(
        """
        SELECT FROM celeriac.runs AS run
        JOIN celeriac.checkpoints AS latest
            ON latest.run_id = run.run_id AND latest.step = run.step - 1
        JOIN celeriac.effects AS effect
            ON effect.run_id = run.run_id AND effect.call_id = %(call_id)s
        WHERE run.run_id = %(run_id)s AND run.error ->> 'kind' = 'precondition_failed'
            AND latest.state -> 'pending' ? %(call_id)s
            AND EXISTS (
                SELECT FROM celeriac.effect_attempts AS entry
                WHERE (entry.run_id, entry.call_id, entry.attempt)
                    = (effect.run_id, effect.call_id, effect.attempt)
                    AND entry.outcome = 'committed'
            )
        """,
        {"run_id": run_id, "call_id": call_id},
    ).fetchone()
    return row is not None


def _lock(connection: Connection, run_id: RunId) -> tuple[RunStatus, str]:
    """Where the run stands, and the agent it is of."""
    row = connection.exec_driver_sql(
        "SELECT status, agent, erased_at FROM celeriac.runs WHERE run_id = %s FOR UPDATE",
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    if row[2] is not None:
        raise erased(run_id, row[2])
    return RunStatus(row[0]), row[1]


def _check_result(connection: Connection, agent: str, tool: str, result: JsonValue) -> None:
    """Raise `InvalidInput` for what the tool cannot return, as a worker last registered it: it is
    the code of now that reads the result. What only code can judge is left to it."""
    definition = latest_definition(connection, agent) or {}
    tools = definition.get("tools")
    for each in tools if isinstance(tools, list) else []:
        if not isinstance(each, dict) or each.get("name") != tool:
            continue
        schemas: Any = each.get("result_schemas", [])
        misfits = [problems_by_schema(stored_form(result), schema) for schema in schemas]
        if misfits and all(misfits):
            raise InvalidInput(
                f"the result of {tool} does not fit its type, and nothing was written: "
                f"{listed(misfits[0])}"
            )


@dataclass(frozen=True, slots=True)
class _Call:
    tool: str
    state: EffectState
    attempt: int
    error: dict[str, JsonValue] | None
    undo: Rollback | None  # how it takes another call back, if it does
    undone: tuple[RunId, CallId] | None  # which
    is_elsewhere: bool  # another process executes it
    is_first: bool  # of the calls of its step that are still to be made

    @property
    def is_stuck_undo(self) -> bool:
        """Whether it takes a call back, has certainly changed nothing, and was tried or is next: an
        undo that kills its worker leaves no attempt behind."""
        is_open = self.state in (EffectState.PLANNED, EffectState.NOT_DONE)
        return self.undo is not None and is_open and (self.attempt > 0 or self.is_first)


def _not_done(call: _Call, by: UserId) -> tuple[EffectState, dict[str, JsonValue] | None]:
    """What a call becomes of which somebody says that it is not done."""
    if call.state is EffectState.KNOWN_BAD:
        message = f"{call.tool} reported success, but it did not take effect; {by} has settled that"
        return EffectState.ROLLED_BACK, {"kind": "known_bad", "message": message}
    is_by_hand = call.undo is Rollback.OUT_OF_BAND
    if not call.is_stuck_undo and not is_by_hand:
        return EffectState.NOT_DONE, None
    before = "" if call.error is None else f"{call.error.get('message')}; "
    message = f"{before}{by} has said that it will not be undone"
    settled = EffectState.REJECTED if call.state is EffectState.PLANNED else EffectState.FAILED
    return settled, {"kind": "not_undone", "message": message}


def _lock_effect(connection: Connection, run_id: RunId, call_id: CallId) -> _Call:
    row = connection.exec_driver_sql(
        """
        SELECT tool, state, attempt, error, rolls_back_kind, rolls_back_run, rolls_back,
            coalesce(flags ? 'elsewhere', false),
            NOT EXISTS (
                SELECT FROM celeriac.effects AS earlier
                WHERE earlier.run_id = effect.run_id AND earlier.step = effect.step
                    AND earlier.call_index < effect.call_index
                    AND earlier.state IN ('planned', 'in_flight', 'unknown', 'not_done')
            )
        FROM celeriac.effects AS effect
        WHERE run_id = %s AND call_id = %s FOR NO KEY UPDATE
        """,
        (run_id, call_id),
    ).fetchone()
    if row is None:
        unknown = _unknown_calls(connection, run_id)
        hint = (
            f"outcome unknown: {', '.join(unknown)}" if unknown else "no outcome is unknown there"
        )
        raise UnknownCall(f"run {run_id} has no call {call_id} ({hint})")
    tool, state, attempt, error, kind, of_run, of_call, is_elsewhere, is_first = row
    undo = None if kind is None else Rollback(kind)
    undone = None if kind is None else (of_run, of_call)
    return _Call(tool, EffectState(state), attempt, error, undo, undone, is_elsewhere, is_first)


def _refuse_over_report(
    connection: Connection, run_id: RunId, call_id: CallId, call: _Call
) -> None:
    """Raise `Conflict` if the worker that made the latest attempt has told that it took effect."""
    lost = lost_calls.find(connection, run_id, call_id, call.attempt, visibility_seconds=0)
    if lost.reported is EffectState.COMMITTED:
        raise Conflict(
            f"call {call_id} ({call.tool}) of run {run_id} cannot be declared not done: the worker "
            f"that made attempt {call.attempt} has told that it took effect, with the result "
            f"{dumps(lost.report)}; say `celeriac resolve {run_id} {call_id} --committed JSON`"
        )


def _undo(connection: Connection, run_id: RunId, call_id: CallId) -> tuple[str, str] | None:
    """The run and the call that take this call back or may have."""
    row = connection.exec_driver_sql(
        "SELECT run_id, call_id FROM celeriac.effects"
        " WHERE (rolls_back_run, rolls_back) = (%s, %s) AND rolls_back_stands",
        (run_id, call_id),
    ).fetchone()
    return None if row is None else (row[0], row[1])


def _unknown_calls(connection: Connection, run_id: RunId) -> list[str]:
    rows = connection.exec_driver_sql(
        "SELECT call_id FROM celeriac.effects WHERE run_id = %s AND state = ANY (%s)"
        " ORDER BY step, call_index",
        (run_id, [state.value for state in _UNSETTLED]),
    )
    return [row[0] for row in rows]


def _not_unknown(run_id: RunId, call_id: CallId, call: _Call, status: RunStatus) -> str:
    state = call.state
    told = f"call {call_id} ({call.tool}) of run {run_id} is {state}"
    if state is EffectState.IN_FLIGHT and call.is_elsewhere:
        return (
            f"{told}: another process executes it; say what came of it with `celeriac submit "
            f"{run_id} {call_id} --result JSON` or `--error TEXT`"
        )
    if state is EffectState.IN_FLIGHT and status is RunStatus.NEEDS_ATTENTION:
        # Three workers died in the step before one could record that the call was lost.
        return (
            f"{told}: say `celeriac retry {run_id}` first, so that a worker finds the lost call "
            "and its outcome can be settled"
        )
    if state is EffectState.IN_FLIGHT:
        return f"{told}: a worker is making it just now, and nobody has to settle it yet"
    if state is EffectState.KNOWN_BAD:
        return f"{told}: its target does not show it, so it can only be settled as --not-done"
    return f"{told}: only a call whose outcome is unknown can be resolved"


def _note(
    connection: Connection,
    run_id: RunId,
    type_: str,
    data: dict[str, JsonValue],
    *,
    goes_on: bool,
) -> RunStatus:
    """Write the event, and if the run goes on, queue it in the phase it has kept; where it stands.

    The scheduler publishes it.
    """
    tenant_id, thread_id = connection.exec_driver_sql(
        """
        WITH run AS (
            UPDATE celeriac.runs SET
                status = CASE WHEN %(goes_on)s THEN 'queued' ELSE status END,
                error = CASE WHEN %(goes_on)s THEN NULL ELSE error END,
                strikes = CASE WHEN %(goes_on)s THEN 0 ELSE strikes END,
                published_at = NULL, publish_count = 0, last_event_seq = last_event_seq + 1
            WHERE run_id = %(run_id)s AND status = 'needs_attention'
            RETURNING run_id, tenant_id, thread_id, last_event_seq
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, last_event_seq, %(type)s, %(data)s::jsonb FROM run
        )
        SELECT tenant_id, thread_id FROM run
        """,
        {"run_id": run_id, "goes_on": goes_on, "type": type_, "data": dumps(data)},
    ).one()
    news.add(connection, run_id)
    if not goes_on:
        return RunStatus.NEEDS_ATTENTION
    if wait_for_turn(connection, run_id, tenant_id, thread_id):
        return RunStatus.PAUSED
    return RunStatus.QUEUED
