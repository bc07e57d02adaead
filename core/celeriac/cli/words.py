"""What a run waits for, in words, and what the reader can do about it."""

from typing import TYPE_CHECKING

from celeriac.cli.output import brief
from celeriac.states import EffectKind, EffectState, Phase, RunStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celeriac.codec import JsonValue
    from celeriac.reports import Run, Wait


def waiting_for(run: "Run", wait: "Wait") -> str | None:
    """A sentence, or None for a run that has ended or is being worked on."""
    if run.status is RunStatus.NEEDS_ATTENTION:
        return _attention(run, wait)
    if run.status is RunStatus.PAUSED:
        return _pause(run, wait)
    if run.status is RunStatus.QUEUED:
        return f"for a worker of queue {wait.queue} to take step {run.step}"
    if run.status is RunStatus.RUNNING and wait.is_cancel_requested:
        return "for the step in progress to be recorded; then it is cancelled"
    return _unsettled(run, wait) if run.status.is_terminal else None


def what_is_missing(unmet: "JsonValue | Sequence[JsonValue]") -> str:
    """Of a contract, as its events list it."""
    listed = unmet if isinstance(unmet, list | tuple) else []
    return "; ".join(str(each["why"]) for each in listed if isinstance(each, dict))


def _attention(run: "Run", wait: "Wait") -> str:
    if wait.unknown_calls:
        call = wait.unknown_calls[0]
        return (
            f"for a person: look at the target of {_call(run, call)}, then say `celeriac resolve "
            f"{run.run_id} {call} --committed JSON` or `--not-done`"
        )
    if isinstance(run.error, dict) and run.error.get("kind") == "precondition_failed":
        return (
            f"for a person: `celeriac retry {run.run_id}` tells the model that the call was not "
            f"made and lets it go on, `celeriac cancel {run.run_id}` ends the run"
        )
    return f"for a person: mend what the error says, then say `celeriac retry {run.run_id}`"


def _call(run: "Run", call_id: str) -> str:
    """The call as somebody needs it who has to find out at the target what came of it."""
    for effect in run.effects:
        if effect.call_id == call_id:
            return (
                f"call {call_id}, {effect.tool} with {brief(effect.arguments, 500)} and the "
                f"idempotency key {effect.key}"
            )
    return f"call {call_id}"


def _unsettled(run: "Run", wait: "Wait") -> str | None:
    if not wait.unknown_calls:
        return None
    return (
        f"for nothing; but what came of call {wait.unknown_calls[0]} is unknown: "
        f"`celeriac resolve {run.run_id} {wait.unknown_calls[0]} …` settles it"
    )


def _decision(run: "Run") -> str:
    waiting = [each for each in run.approvals if each.status == "pending"]
    if not waiting:
        return "for a person to approve, edit or reject a call"
    first = waiting[0]
    others = f", and {len(waiting) - 1} more (`celeriac approvals`)" if len(waiting) > 1 else ""
    return (
        f"for a person to decide about {first.tool} (call {first.call_id}): `celeriac approve "
        f"{first.approval_id} --as USER`, `edit` or `reject`{others}"
    )


def _result(run: "Run") -> str:
    waiting = [call for call in run.effects if call.state is EffectState.IN_FLIGHT]
    if not waiting:
        return "for the result of a tool that another process executes"
    first = waiting[0]
    others = f", and {len(waiting) - 1} more" if len(waiting) > 1 else ""
    return (
        f"for the result of {first.tool} (call {first.call_id}), which another process executes: "
        f"`celeriac submit {run.run_id} {first.call_id} --result JSON`{others}"
    )


def _what_then(run: "Run") -> str:
    if run.epoch == 0:
        return ", when it begins"
    is_asleep = any(each.kind is EffectKind.NONE for each in run.effects if not each.attempt)
    return "" if is_asleep else ", to try again"


def _children(run: "Run") -> str:
    waited_for = [child for child in run.children if child.outcome is None]
    direct = [child for child in waited_for if child.parent.run_id == run.run_id]
    if not direct:
        return "for another run that it started"
    first, others = direct[0], len(direct) - 1
    more = f", and {others} more" if others else ""
    return f"for run {first.run_id} of agent {first.agent}, which is {first.status}{more}"


def _activities(run: "Run") -> str:
    awaited = [each for each in run.activities if each.is_awaited]
    if not awaited:
        return "for what its code has asked for"
    # Of several, one that needs a person: the others go on by themselves.
    first = min(awaited, key=lambda each: each.run_status is not RunStatus.NEEDS_ATTENTION)
    more = f", and {len(awaited) - 1} more" if len(awaited) > 1 else ""
    what = f"for {first.kind} {first.name}"
    if first.kind == "approval" and isinstance(first.arguments, dict):
        what = f"for a decision about {brief(first.arguments.get('intent'), 100)}"
    if first.due_at is not None:
        what = f"until {first.due_at:%Y-%m-%d %H:%M:%S} UTC"
    elif first.kind == "event":
        what += f": `celeriac send-event {run.run_id} {first.name} JSON`"
    elif first.run_id is not None:
        phase = "" if first.run_phase is None else f", {first.run_phase}"
        what += f": run {first.run_id}, which is {first.run_status}{phase}"
        if first.run_status in (RunStatus.PAUSED, RunStatus.NEEDS_ATTENTION):
            more += f"; `celeriac show {first.run_id}` says more"
    return what + more


def _pause(run: "Run", wait: "Wait") -> str:
    match run.phase:
        case Phase.WAITING_WORKER:
            return (
                f"for a worker: no live worker has agent {run.agent}; start one with `celeriac "
                f"worker --agents MODULE`, where MODULE defines it"
            )
        case Phase.WAITING_THREAD:
            behind = f"run {wait.behind}" if wait.behind else "an earlier run"
            return f"for its turn in thread {run.thread_id}, behind {behind}"
        case Phase.WAITING_TIMER if wait.wake_at is not None:
            return f"until {wait.wake_at:%Y-%m-%d %H:%M:%S} UTC{_what_then(run)}"
        case Phase.WAITING_APPROVAL:
            return _decision(run)
        case Phase.WAITING_USER:
            return f"for its user: `celeriac say {run.run_id} TEXT`"
        case Phase.WAITING_EXTERNAL:
            return _result(run)
        case Phase.WAITING_BUDGET:
            return (
                "for room in a budget: it comes when calls that are being made use less than was "
                "reserved for them, or by `celeriac budgets top-up`"
            )
        case Phase.WAITING_CHILD:
            return _children(run)
        case Phase.WAITING_ACTIVITY:
            return _activities(run)
        case _:
            return "for a moment"
