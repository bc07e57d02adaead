"""The commit of a step: one statement that writes all of it, or nothing if the claim is lost.

The statement begins with an update of the run's row that names the step, the token and the requests
this step knows of. It takes the row's lock; everything else is inserted from what that update
returns, so a fenced worker inserts nothing, and no second check can disagree with the first.
"""

from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.states import EffectState, Phase, RunStatus
from celeriac_storage import children
from celeriac_storage.budgets import settle, settle_parameters
from celeriac_storage.claims import CHECKPOINT_SCHEMA_VERSION, Claim, refusal
from celeriac_storage.database import fetch_row
from celeriac_storage.step_record import (
    Committed,
    Event,
    ModelCall,
    Next,
    PlannedEffect,
    PlannedUndo,
    SettledEffect,
    StepRecord,
)
from celeriac_storage.step_statement import statement
from celeriac_storage.threads import wake_next_of_thread

FENCE = "claim_token = %(token)s"

_NEVER_BEGUN = (EffectState.REJECTED, EffectState.PRECONDITION_FAILED)
"""What becomes of calls whose decisions, if they needed any, are over without being used."""
_NEVER_TRIED = (EffectState.INVALID, *_NEVER_BEGUN)


def commit(
    connection: Connection,
    claim: Claim,
    record: StepRecord,
    *,
    keep_claim_seconds: float | None = None,
) -> Committed:
    """Commit the step. With `keep_claim_seconds` the claim goes on to the next step, which has that
    long; the run is then `running` instead of `queued`.

    Raises `Fenced` if the claim no longer holds the step, and `RequestsChanged` if somebody asked
    for something (cancel …) since the claim; nothing is written in either case. A step that
    releases its thread needs a transaction around it, because it wakes the next run; others do not.
    """
    # What ends or waits wakes other runs, and may wait for their rows: then budgets come last, so
    # that nobody who holds one waits for a run.
    settles_last = record.budget_use is not None and record.next.releases_thread
    row = fetch_row(
        connection,
        statement(
            FENCE,
            record.advances,
            bool(record.messages),
            record.hears,
            record.ends_interrupt,
            bool(record.events) or record.hears or record.next.status is not RunStatus.QUEUED,
            bool(record.planned),
            bool(record.undos),
            bool(record.proposed),
            record.next.status.is_terminal and claim.phase is Phase.WAITING_TOOL,
            any(effect.state in _NEVER_BEGUN for effect in record.settled),
            bool(record.settled),
            any(effect.is_attempt for effect in record.settled),
            record.model_call is not None,
            keep_claim_seconds is not None,
            record.budget_use is not None and not settles_last,
            record.next.budget is not None,
        ),
        _parameters(claim, record, keep_claim_seconds),
    )
    if row is None:
        raise refusal(connection, claim)
    parent_step = None
    if claim.is_child and record.next.status.is_terminal:
        parent_step = children.report_end(connection, claim.run_id, is_published=True)
    committed = Committed(row[0], RunStatus(row[1]), row[2], row[3], parent_step, row[4])
    if record.next.releases_thread and claim.thread_position is not None:
        # A run that another one started has no turn in the thread, and frees none.
        wake_next_of_thread(connection, claim.tenant_id, claim.thread_id)
    if settles_last and record.budget_use is not None:
        settle(connection, claim, record.budget_use)
    return committed


def _parameters(
    claim: Claim, record: StepRecord, keep_claim_seconds: float | None
) -> dict[str, Any]:
    following = record.next
    keeps_claim = keep_claim_seconds is not None and following.status is RunStatus.QUEUED
    is_completed = following.status is RunStatus.COMPLETED
    words = claim.said if record.hears else 0
    heard = [Event("run.heard", {"words": words})] if words else []
    events = [*record.events, *heard, *_run_event(following)]
    parameters: dict[str, Any] = {
        "run_id": claim.run_id,
        "step": claim.step,
        "token": UUID(claim.token),
        "request_version": claim.request_version,
        "advance": int(record.advances),
        "status": RunStatus.RUNNING.value if keeps_claim else following.status.value,
        "phase": following.phase,
        "resume_phase": following.resume_phase,
        "outcome": following.outcome,
        "result": dumps(following.result) if is_completed else None,
        "error": _json(following.error),
        "is_terminal": following.status.is_terminal,
        "keeps": keeps_claim,
        "deadline": keep_claim_seconds,
        "wake_after": following.wake_after_seconds,
        "failed_thinks": record.failed_thinks,
        "agent_hash": record.agent_hash,
        "tools_hash": record.tools_hash,
        "prompt_hash": record.prompt_hash,
        "messages_added": len(record.messages) + words,
        "words": words,
        "events_added": len(events),
        "tool_calls": record.tool_calls,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
    }
    if record.advances:
        parameters |= {
            "kind": record.kind.value,
            "reason": record.reason,
            "state": dumps(record.state),
            "schema_version": CHECKPOINT_SCHEMA_VERSION,
            "started_at": claim.step_started_at,
        }
    if record.messages:
        parameters["messages"] = dumps([{"role": m.role, "body": m.body} for m in record.messages])
    if events:
        parameters["events"] = dumps([{"type": e.type, "data": e.data} for e in events])
    if record.planned:
        parameters["planned"] = dumps([_planned_row(effect) for effect in record.planned])
    if record.undos:
        parameters["undos"] = dumps([_undo_row(undo) for undo in record.undos])
        parameters["undo_count"] = len(record.undos)
    if record.proposed:
        parameters |= {
            "proposed": dumps([proposal.to_row() for proposal in record.proposed]),
            "proposed_count": len(record.proposed),
            "tenant_id": claim.tenant_id,
            "user_id": claim.user_id,
        }
    if record.settled:
        parameters["settled"] = dumps([_settled_row(effect) for effect in record.settled])
        parameters["settled_count"] = len(record.settled)
    if record.budget_use is not None:
        parameters |= settle_parameters(record.budget_use)
    if following.budget is not None:
        parameters |= {
            "awaited_budget_id": following.budget.budget_id,
            "awaited_amount": following.budget.needed,
        }
    if record.model_call is not None:
        parameters |= _model_call_parameters(record.model_call)
    return parameters


def _run_event(following: Next) -> list[Event]:
    """The line that says where the run went, last; going on is not worth one."""
    if following.status is RunStatus.QUEUED:
        return []
    data: dict[str, JsonValue] = {}
    if following.phase is not None:
        data["phase"] = following.phase
    if following.outcome is not None:
        data["outcome"] = following.outcome
    if following.error is not None:
        data["error"] = following.error
    return [Event(f"run.{following.status}", data)]


def _planned_row(effect: PlannedEffect) -> dict[str, JsonValue]:
    return {
        "call_id": effect.call_id,
        "call_index": effect.call_index,
        "provider_call_id": effect.provider_call_id,
        "tool": effect.tool,
        "tool_version": effect.tool_version,
        "kind": effect.kind.value,
        "flags": effect.flags,
        "arguments": effect.arguments,
        "state": effect.state.value,
        "error": effect.error,
        "requirement": effect.requirement,
    }


def _undo_row(undo: PlannedUndo) -> dict[str, JsonValue]:
    return {
        "call_id": undo.call_id,
        "call_index": undo.call_index,
        "tool": undo.tool,
        "rollback": undo.kind.value,
        "of_run": undo.of_run,
        "of_call": undo.of_call,
        "state": undo.state.value,
        "error": undo.error,
    }


def _settled_row(effect: SettledEffect) -> dict[str, JsonValue]:
    row: dict[str, JsonValue] = {
        "call_id": effect.call_id,
        "was": effect.was.value,
        "state": effect.state.value,
        "error": effect.error,
        "tries": int(_is_try(effect)),
        "checks": int(effect.is_check),
        "is_attempt": effect.is_attempt,
        "evidence": effect.evidence,
    }
    if effect.result_artifact is not None:
        row["result_artifact"] = effect.result_artifact.hex()
    elif effect.state is EffectState.COMMITTED:
        row["result"] = effect.result
    return row


def _is_try(effect: SettledEffect) -> bool:
    """Whether the call was tried without a record of its own before; else that has counted it."""
    is_first_seen = effect.was in (EffectState.PLANNED, EffectState.APPROVED)
    return is_first_seen and not effect.is_check and effect.state not in _NEVER_TRIED


def _model_call_parameters(call: ModelCall) -> dict[str, Any]:
    return {
        "model_attempt": call.attempt,
        "model": call.model,
        "model_messages": call.message_count,
        "model_outcome": call.outcome,
        "model_error": _json(call.error),
        "usage": _json(call.usage),
        "selection": _json(call.selection),
        "call_prompt_hash": call.prompt_hash,
        "call_tools_hash": call.tools_hash,
        "model_started_at": call.started_at,
        "cost": call.cost,
    }


def _json(value: JsonValue) -> str | None:
    return None if value is None else dumps(value)
