"""Results of calls that another process has executed: all of a batch, or none.

The rows are the only truth: a result that is there already is never replaced, whatever is submitted
again. Rows are locked in this order: the run, its effects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlalchemy import Connection

from celeriac import reports
from celeriac.codec import JsonValue, dumps, loads
from celeriac.errors import CeleriacError, Conflict, UnknownCall
from celeriac.evidence import command_evidence
from celeriac.ids import CallId, RunId, TenantId, UserId, effect_key
from celeriac.states import EffectState, Phase, RunStatus
from celeriac.testpoints import reach
from celeriac.workspace.receipts import Receipt
from celeriac_storage import audit_trail, pauses, receipts, run_events
from celeriac_storage.receipts import Expected, Received
from celeriac_storage.requests import unknown_run
from celeriac_storage.settling import settle


@dataclass(frozen=True, slots=True)
class Failed:
    """The call failed; the model is told `message`, and may try something else."""

    message: str


Result: TypeAlias = "JsonValue | Failed | Receipt"
"""What a call returned, any JSON, or that it failed; of a call that changes files, a receipt that
says either."""
Results = Mapping[CallId, Result]


def submit(connection: Connection, run_id: RunId, results: Results, by: UserId) -> RunStatus:
    """Record what came of calls; where the run stands then. Needs a transaction.

    With the last result that it waits for, the run goes on. A result that is there already and is
    the same is no news and no error. If a workspace was not as the run had left it, what the
    receipt says is recorded, its call is `unknown`, and the run goes to a person at once.

    Raises `UnknownRun`; `UnknownCall` for a call that the run has not, or that a worker executes;
    `InvalidReceipt` if a call changes files and no good receipt says which; `Conflict` for a call
    that has another result or is not requested yet, and if the run has ended or is being
    cancelled. Then nothing of the batch is recorded, and the caller records the refusal
    (`record_refusal`) once this transaction is rolled back.
    """
    run = connection.exec_driver_sql(
        "SELECT status, phase, cancel_requested_at IS NOT NULL, tenant_id FROM celeriac.runs"
        " WHERE run_id = %s FOR UPDATE",
        (run_id,),
    ).fetchone()
    if run is None:
        raise unknown_run(run_id)
    status, is_cancelled = RunStatus(run[0]), run[2]
    if status.is_terminal or is_cancelled:
        stands = status if status.is_terminal else "being cancelled"
        raise Conflict(f"run {run_id} is {stands} and takes no results any more")
    calls = _calls(connection, run_id)
    expected = receipts.expected(connection, run_id)
    news = [
        _News(call_id, calls[call_id].tool, result)
        for call_id, result in results.items()
        if _is_news(run_id, calls, expected, call_id, result)
    ]
    if not news:
        return status
    # All are read before the first is written.
    read = [
        (each, receipts.receive(each.call_id, each.tool, each.result, expected.get(each.call_id)))
        for each in news
    ]
    events: list[tuple[str, dict[str, JsonValue]]] = []
    for each, received in read:
        events += _record(connection, run_id, each, received, by)
        if received is not None and received.drift is not None:
            _note_drift(connection, TenantId(run[3]), run_id, each, received, by)
        reach("submit.recorded")
    run_events.append(connection, run_id, events, is_request=True)
    told = {each.call_id for each in news}
    waits = any(
        call.state is EffectState.IN_FLIGHT and call_id not in told
        for call_id, call in calls.items()
    )
    has_drifted = any(received is not None and received.drift for _, received in read)
    if (waits and not has_drifted) or run[1] != Phase.WAITING_EXTERNAL:
        return status
    # It has held its thread meanwhile, so there is no turn to wait for.
    pauses.wake(connection, Phase.WAITING_EXTERNAL, "%(run_id)s", {"run_id": run_id})
    return RunStatus.QUEUED


@dataclass(frozen=True, slots=True)
class _News:
    """A result that is not known yet."""

    call_id: CallId
    tool: str
    result: Result


def _record(
    connection: Connection, run_id: RunId, news: _News, received: Received | None, by: UserId
) -> list[tuple[str, dict[str, JsonValue]]]:
    """Settle the call; the events that say so."""
    result = _plain(news.result, received)
    error = _error(result) if isinstance(result, Failed) else None
    state = EffectState.COMMITTED if error is None else EffectState.FAILED
    evidence: dict[str, JsonValue] = {"by": by}
    if received is not None:
        evidence |= received.evidence
    if not isinstance(result, Failed):
        evidence |= command_evidence(result)
    call: dict[str, JsonValue] = {"call_id": news.call_id, "tool": news.tool}
    events: list[tuple[str, dict[str, JsonValue]]] = []
    if received is not None and received.drift is not None:
        error, state = _drifted(run_id, news, result, received.drift), EffectState.UNKNOWN
        events.append(("workspace.drifted", {**call, "by": by, "error": error}))
    settle(
        connection,
        run_id,
        EffectState.IN_FLIGHT,
        state,
        call_id=news.call_id,
        result=None if isinstance(result, Failed) else result,
        error=error,
        evidence=evidence,
    )
    data = {**call, "by": by}
    events.append((f"effect.{state}", data if error is None else {**data, "error": error}))
    return events


def _plain(result: Result, received: Received | None) -> "JsonValue | Failed":
    if received is not None:
        checked = received.checked
        return checked.result if checked.error is None else Failed(checked.error)
    assert not isinstance(result, Receipt), "it would have been refused"
    return result


def _drifted(
    run_id: RunId, news: _News, result: "JsonValue | Failed", drift: str
) -> dict[str, JsonValue]:
    told = f"failed with {result.message!r}" if isinstance(result, Failed) else "was done"
    return {
        "kind": "workspace_drift",
        "message": (
            f"{news.tool} (call {news.call_id}) {told}, but {drift}. Look at the files, then say "
            f"`celeriac resolve {run_id} {news.call_id} --committed JSON`, with what the model is "
            "to be told, if they are as they should be, or `--not-done` to have the call made again"
        ),
    }


def _note_drift(
    connection: Connection,
    tenant_id: TenantId,
    run_id: RunId,
    news: _News,
    received: Received,
    by: UserId,
) -> None:
    audit_trail.note(
        connection,
        tenant_id,
        by,
        "workspace.drift",
        run_id,
        run_id=run_id,
        is_allowed=False,
        call_id=news.call_id,
        host=received.checked.host,
        found=received.checked.attestation.before_digest,
        message=received.drift,
    )


def record_refusal(
    connection: Connection, run_id: RunId, results: Results, by: UserId, why: CeleriacError
) -> None:
    """Record that a batch was refused and changed nothing. Needs a transaction."""
    row = connection.exec_driver_sql(
        "SELECT status, tenant_id FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (run_id,)
    ).fetchone()
    if row is None:
        return
    calls: list[JsonValue] = list(results)
    kind = type(why).__name__
    if not RunStatus(row[0]).is_terminal:  # no event may follow the last one
        data: dict[str, JsonValue] = {"calls": calls, "by": by, "error": kind}
        run_events.append(connection, run_id, [("results.refused", data)], is_request=False)
    audit_trail.note(
        connection,
        row[1],
        by,
        "results.submit",
        run_id,
        run_id=run_id,
        is_allowed=False,
        calls=calls,
        error=kind,
        message=str(why),
    )


def requested_calls(
    connection: Connection,
    run_id: RunId | None = None,
    limit: int = 100,
    *,
    tenant_id: TenantId | None = None,
    user_id: UserId | None = None,
) -> list[reports.RequestedCall]:
    """The calls whose results are waited for, the oldest first: of that run, tenant and user, each
    if given."""
    rows = connection.exec_driver_sql(
        f"""
        SELECT effect.run_id, effect.call_id, tool, arguments, tenant_id, attempt.at, thread_id,
            attempt.evidence ->> 'nonce',
            CASE WHEN attempt.evidence ? 'nonce' THEN {receipts.LAST_DIGEST} END
        FROM celeriac.runs AS run
        JOIN celeriac.effects AS effect USING (run_id)
        JOIN celeriac.effect_attempts AS attempt
            ON (attempt.run_id, attempt.call_id, attempt.attempt, entry)
                = (effect.run_id, effect.call_id, effect.attempt, 0)
        WHERE run.status IN ('queued', 'running', 'paused', 'needs_attention')
            AND run.run_id = coalesce(%(run_id)s::text, run.run_id)
            AND run.tenant_id = coalesce(%(tenant_id)s::text, run.tenant_id)
            AND run.user_id = coalesce(%(user_id)s::text, run.user_id)
            AND cancel_requested_at IS NULL AND effect.state = 'in_flight' AND flags ? 'elsewhere'
        ORDER BY attempt.at, effect.run_id, call_index LIMIT %(limit)s
        """,
        {"run_id": run_id, "limit": limit, "tenant_id": tenant_id, "user_id": user_id},
    )
    return [
        reports.RequestedCall(
            RunId(run_id), CallId(call_id), tool, arguments, effect_key(tenant_id, run_id, call_id),
            at, receipts.requested_workspace(root, nonce, last_digest),
        )
        for run_id, call_id, tool, arguments, tenant_id, at, root, nonce, last_digest in rows
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Call:
    tool: str
    state: EffectState
    result: str | None  # JSON text in canonical form
    error: dict[str, JsonValue] | None


def _calls(connection: Connection, run_id: RunId) -> dict[CallId, _Call]:
    """The run's calls that another process executes."""
    rows: Any = connection.exec_driver_sql(
        """
        SELECT call_id, tool, state, result::text, convert_from(content, 'UTF8'), error
        FROM celeriac.effects LEFT JOIN celeriac.artifacts ON hash = result_artifact
        WHERE run_id = %s AND flags ? 'elsewhere' ORDER BY step, call_index
        """,
        (run_id,),
    )
    return {
        CallId(call_id): _Call(tool, EffectState(state), artifact or result, error)
        for call_id, tool, state, result, artifact, error in rows
    }


def _is_news(
    run_id: RunId,
    calls: Mapping[CallId, _Call],
    expected: Mapping[CallId, Expected],
    call_id: CallId,
    result: Result,
) -> bool:
    """Whether this settles the call; false if it is what is known. Raises for anything else."""
    call = calls.get(call_id)
    if call is None:
        waiting = ", ".join(
            each for each, call in calls.items() if call.state is EffectState.IN_FLIGHT
        )
        raise UnknownCall(
            f"run {run_id} has requested no call {call_id} from another process (it waits for: "
            f"{waiting or 'none'}); nothing of the batch was recorded"
        )
    named = f"call {call_id} ({call.tool}) of run {run_id}"
    if isinstance(result, Receipt) and call.state is not EffectState.IN_FLIGHT:
        known = expected.get(call_id)
        if known is not None and dumps(known.receipt) == dumps(result.given):
            return False
    match call.state:
        case EffectState.IN_FLIGHT:
            return True
        case EffectState.COMMITTED | EffectState.FAILED if isinstance(result, Receipt):
            is_same = False
        case EffectState.COMMITTED:
            assert call.result is not None
            is_same = not isinstance(result, Failed) and dumps(result) == dumps(loads(call.result))
        case EffectState.FAILED:
            is_same = isinstance(result, Failed) and _error(result) == call.error
        case _:
            raise Conflict(
                f"{named} is {call.state}, so nobody waits for its result; nothing of the batch "
                "was recorded"
            )
    if is_same:
        return False
    raise Conflict(
        f"{named} is {call.state} already, with another result, which stays; nothing of the batch "
        "was recorded"
    )


def _error(failed: Failed) -> dict[str, JsonValue]:
    return {"kind": "tool_error", "message": failed.message}
