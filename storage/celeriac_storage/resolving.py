"""What a person decides about a run in `needs_attention`: what came of a call, or to go on.

Rows are locked in this order: the run, then its effect.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.errors import Conflict, UnknownCall
from celeriac.ids import CallId, RunId, UserId
from celeriac.states import EffectState, RunStatus
from celeriac_storage import artifacts
from celeriac_storage.requests import unknown_run


@dataclass(frozen=True, slots=True)
class TookEffect:
    """The call did what it should. The model is told `result`, as if the tool had returned it."""

    result: JsonValue


@dataclass(frozen=True, slots=True)
class NotDone:
    """The call changed nothing, and certainly will not later. It is made again, key and all."""


Resolution = TookEffect | NotDone


def resolve(
    connection: Connection, run_id: RunId, call_id: CallId, resolution: Resolution, by: UserId
) -> RunStatus:
    """Settle a call whose outcome is `unknown`; where the run stands then. Needs a transaction.

    A run in `needs_attention` is queued again, with its strikes forgiven, unless another of its
    calls is still unknown. A run that has ended meanwhile, as by a cancel, stays what it is: only
    the effect is settled, and its attempt says by whom, since no event may follow the last one.

    Raises `UnknownRun`, `UnknownCall`, or `Conflict` if nobody waits for this answer.
    """
    status = _lock(connection, run_id)
    state, tool = _lock_effect(connection, run_id, call_id)
    if state is not EffectState.UNKNOWN:
        raise Conflict(_not_unknown(run_id, call_id, tool, state, status))
    settled = EffectState.COMMITTED if isinstance(resolution, TookEffect) else EffectState.NOT_DONE
    _settle(connection, run_id, call_id, resolution, settled, by)
    if status is not RunStatus.NEEDS_ATTENTION:
        return status
    event: dict[str, JsonValue] = {
        "call_id": call_id,
        "tool": tool,
        "state": settled.value,
        "by": by,
    }
    goes_on = not _unknown_calls(connection, run_id)
    _note(connection, run_id, "effect.resolved", event, goes_on=goes_on)
    return RunStatus.QUEUED if goes_on else status


def retry(connection: Connection, run_id: RunId, by: UserId) -> RunStatus:
    """Queue a run in `needs_attention` again, with its strikes forgiven. Needs a transaction.

    Raises `UnknownRun`, or `Conflict` if the run needs no attention, or first has to be told what
    came of a call: a retry must never be a way to repeat one silently.
    """
    status = _lock(connection, run_id)
    if status is not RunStatus.NEEDS_ATTENTION:
        wish = (
            "start a new run instead" if status.is_terminal else "it goes on without being told to"
        )
        raise Conflict(f"run {run_id} is {status} and does not need attention; {wish}")
    if unknown := _unknown_calls(connection, run_id):
        raise Conflict(
            f"run {run_id} cannot be retried before the outcome of {', '.join(unknown)} is known: "
            f"look at the target, then say `celeriac resolve {run_id} {unknown[0]} --committed "
            "JSON` or `--not-done`"
        )
    _note(connection, run_id, "run.retried", {"by": by}, goes_on=True)
    return RunStatus.QUEUED


def _lock(connection: Connection, run_id: RunId) -> RunStatus:
    row = connection.exec_driver_sql(
        "SELECT status FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (run_id,)
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    return RunStatus(row[0])


def _lock_effect(connection: Connection, run_id: RunId, call_id: CallId) -> tuple[EffectState, str]:
    row = connection.exec_driver_sql(
        "SELECT state, tool FROM celeriac.effects WHERE run_id = %s AND call_id = %s FOR UPDATE",
        (run_id, call_id),
    ).fetchone()
    if row is None:
        unknown = _unknown_calls(connection, run_id)
        hint = (
            f"outcome unknown: {', '.join(unknown)}" if unknown else "no outcome is unknown there"
        )
        raise UnknownCall(f"run {run_id} has no call {call_id} ({hint})")
    return EffectState(row[0]), row[1]


def _unknown_calls(connection: Connection, run_id: RunId) -> list[str]:
    rows = connection.exec_driver_sql(
        "SELECT call_id FROM celeriac.effects WHERE run_id = %s AND state = 'unknown'"
        " ORDER BY step, call_index",
        (run_id,),
    )
    return [row[0] for row in rows]


def _not_unknown(
    run_id: RunId, call_id: CallId, tool: str, state: EffectState, status: RunStatus
) -> str:
    told = f"call {call_id} ({tool}) of run {run_id} is {state}"
    if state is EffectState.IN_FLIGHT and status is RunStatus.NEEDS_ATTENTION:
        # Three workers died in the step before one could record that the call was lost.
        return (
            f"{told}: say `celeriac retry {run_id}` first, so that a worker finds the lost call "
            "and its outcome can be settled"
        )
    if state is EffectState.IN_FLIGHT:
        return f"{told}: a worker is making it just now, and nobody has to settle it yet"
    return f"{told}: only a call whose outcome is unknown can be resolved"


def _settle(
    connection: Connection,
    run_id: RunId,
    call_id: CallId,
    resolution: Resolution,
    settled: EffectState,
    by: UserId,
) -> None:
    parameters: dict[str, Any] = {
        "run_id": run_id,
        "call_id": call_id,
        "state": settled.value,
        "result": None,
        "artifact": None,
        "evidence": dumps({"by": by}),
    }
    if isinstance(resolution, TookEffect):
        text = dumps(resolution.result)
        if artifacts.is_large(text):
            parameters["artifact"] = artifacts.store(connection, text)
        else:
            parameters["result"] = text
    connection.exec_driver_sql(
        """
        WITH effect AS (
            UPDATE celeriac.effects SET state = %(state)s, error = NULL,
                result = %(result)s::jsonb,
                result_hash = sha256(convert_to(%(result)s::jsonb::text, 'UTF8')),
                result_artifact = %(artifact)s::bytea, settled_at = clock_timestamp()
            WHERE run_id = %(run_id)s AND call_id = %(call_id)s AND state = 'unknown'
            RETURNING run_id, call_id, attempt
        )
        INSERT INTO celeriac.effect_attempts (run_id, call_id, attempt, entry, outcome, evidence)
        SELECT run_id, call_id, attempt, (
            SELECT max(entry) + 1 FROM celeriac.effect_attempts AS earlier
            WHERE (earlier.run_id, earlier.call_id, earlier.attempt)
                = (effect.run_id, effect.call_id, effect.attempt)
        ), %(state)s, %(evidence)s::jsonb
        FROM effect
        """,
        parameters,
    )


def _note(
    connection: Connection,
    run_id: RunId,
    type_: str,
    data: dict[str, JsonValue],
    *,
    goes_on: bool,
) -> None:
    """Write the event, and if the run goes on, queue it in the phase it has kept.

    The scheduler publishes it.
    """
    connection.exec_driver_sql(
        """
        WITH run AS (
            UPDATE celeriac.runs SET
                status = CASE WHEN %(goes_on)s THEN 'queued' ELSE status END,
                error = CASE WHEN %(goes_on)s THEN NULL ELSE error END,
                strikes = CASE WHEN %(goes_on)s THEN 0 ELSE strikes END,
                published_at = NULL, publish_count = 0, last_event_seq = last_event_seq + 1
            WHERE run_id = %(run_id)s AND status = 'needs_attention'
            RETURNING run_id, last_event_seq
        )
        INSERT INTO celeriac.events (run_id, seq, type, data)
        SELECT run_id, last_event_seq, %(type)s, %(data)s::jsonb FROM run
        """,
        {"run_id": run_id, "goes_on": goes_on, "type": type_, "data": dumps(data)},
    )
