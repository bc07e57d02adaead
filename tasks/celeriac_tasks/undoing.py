"""The steps of a rollback that no other run has: what is to be undone, and what came of it.

No model is asked. The first think step plans an undo for each call that took effect, the latest
first; act steps make them one by one, like any call; the last think step tells what came of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.ids import CallId, RunId, call_id
from celeriac.rollback import Rollback
from celeriac.states import EffectState, Phase, RunStatus, StepKind
from celeriac.undo_tool import undo_name
from celeriac_storage import effects, rollbacks
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.rollbacks import Happened, Outcome
from celeriac_storage.step_record import Event, Next, PlannedUndo, SettledEffect, StepRecord
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.transition import Transition

Details = dict[str, JsonValue]


def think(database: Database, loaded: LoadedAgent, claim: Claim) -> Transition:
    """What the rollback does next when it has no call to make: plan, or tell what came of it."""
    return _plan(database, loaded, claim) if claim.step == 0 else _report(database, claim)


def _plan(database: Database, loaded: LoadedAgent, claim: Claim) -> Transition:
    assert isinstance(claim.input, dict)
    run_id, wanted = RunId(str(claim.input["run_id"])), claim.input["calls"]
    assert isinstance(wanted, list)
    with database.connect() as connection:
        # The run may have gone on since: who asked was not checked for what it has done meanwhile.
        calls = [call for call in rollbacks.happened(connection, run_id) if call.call_id in wanted]
    tools = {tool.name: tool for tool in loaded.agent.tools}
    for call in calls:
        if call.tool not in tools:
            message = (
                f"tool {call.tool} of call {call.call_id} is no longer part of agent "
                f"{claim.agent}, so nobody can tell how to undo it: deploy code that has it, then "
                f"`celeriac retry {claim.run_id}`"
            )
            lacking: Details = {"kind": "missing_tool", "message": message}
            following = Next.needs_attention(Phase.WAITING_MODEL, lacking)
            return Transition(StepRecord(following, StepKind.THINK, "missing_tool", advances=False))
    undos = [
        _planned(call_id(claim.step, index), index, run_id, call, *_choice(loaded, call))
        for index, call in enumerate(calls)
    ]
    pending: list[JsonValue] = [undo.call_id for undo in undos if undo.state is EffectState.PLANNED]
    planned: list[JsonValue] = [
        {"call_id": undo.call_id, "rolls_back": undo.of_call, "kind": undo.kind} for undo in undos
    ]
    return Transition(
        StepRecord(
            next=Next.queued(Phase.WAITING_TOOL if pending else Phase.WAITING_MODEL),
            kind=StepKind.THINK,
            reason="rollback_planned",
            state={"pending": pending} if pending else {},
            events=[Event("rollback.planned", {"run_id": run_id, "undos": planned})],
            undos=undos,
        )
    )


def _choice(loaded: LoadedAgent, call: Happened) -> tuple[Rollback, str]:
    """How the call is undone, by what its tool declares; and if not by itself, why."""
    (tool,) = (tool for tool in loaded.agent.tools if tool.name == call.tool)
    if tool.rollback is Rollback.NONE:
        return Rollback.NONE, "it cannot be taken back"
    if tool.undo is None:
        return Rollback.OUT_OF_BAND, "only people can take it back"
    if tool.version != call.tool_version:
        return Rollback.OUT_OF_BAND, (
            f"version {call.tool_version} of the tool made it, and this code has version "
            f"{tool.version}"
        )
    return tool.rollback, ""


def _planned(
    undo_id: CallId, index: int, run_id: RunId, call: Happened, kind: Rollback, why: str
) -> PlannedUndo:
    is_given_up = kind is Rollback.NONE
    return PlannedUndo(
        undo_id,
        index,
        undo_name(call.tool),
        kind,
        run_id,
        call.call_id,
        EffectState.INVALID if is_given_up else EffectState.PLANNED,
        {"kind": "not_undone" if is_given_up else kind.value, "message": why} if why else None,
    )


def _report(database: Database, claim: Claim) -> Transition:
    with database.connect() as connection:
        outcomes = rollbacks.outcomes(connection, claim.run_id)
    undone: list[JsonValue] = []
    partly_undone: list[JsonValue] = []
    compensated: list[JsonValue] = []
    not_undone: list[JsonValue] = []
    for outcome in outcomes:
        call: Details = {"call_id": outcome.call_id, "tool": outcome.tool}
        if outcome.state is not EffectState.COMMITTED:
            not_undone.append({**call, "why": _why(outcome)})
        elif isinstance(outcome.result, dict) and outcome.result.get("is_partial") is True:
            partly_undone.append({**call, "report": outcome.result})
        elif outcome.kind is Rollback.COMPENSATE:
            compensated.append(call)
        else:
            undone.append(call)
    report: Details = {"undone": undone, "compensated": compensated, "not_undone": not_undone}
    if partly_undone:
        report["partly_undone"] = partly_undone
    completed = Next(RunStatus.COMPLETED, outcome="completed", result=report)
    return Transition(StepRecord(completed, StepKind.THINK, "rollback_reported"))


def _why(outcome: Outcome) -> str:
    error = outcome.error or {}
    return str(error.get("message", f"its undo is {outcome.state}"))


def moot(effect: Effect) -> SettledEffect | None:
    """What becomes of an undo whose call has been declared not to have taken effect; else None."""
    is_open = effect.state in (EffectState.PLANNED, EffectState.NOT_DONE)
    if effect.undoes is None or effect.undoes.is_in_effect or not is_open:
        return None
    error: Details = {
        "kind": "not_undone",
        "message": "there is nothing to undo: since the rollback was planned it has become known "
        "that the call is not in effect",
    }
    was_tried = effect.state is EffectState.NOT_DONE
    return SettledEffect(
        effect.call_id,
        effect.state,
        EffectState.FAILED if was_tried else EffectState.REJECTED,
        error=error,
        is_attempt=was_tried,
        evidence=error if was_tried else None,
    )


def other_version(claim: Claim, loaded: LoadedAgent, effect: Effect) -> Details | None:
    """The error that the run stops with if the call to undo was made by another version of its tool
    than this code has, which was deployed after the plan; None if it was not."""
    if effect.undoes is None or effect.state not in (EffectState.PLANNED, EffectState.NOT_DONE):
        return None
    version = loaded.tools[effect.tool].version
    if version == effect.tool_version:
        return None
    message = (
        f"call {effect.undoes.call_id} ({effect.tool.rpartition('.')[0]}) of run "
        f"{effect.undoes.run_id} was made by version {effect.tool_version} of its tool, and this "
        f"code has version {version}, whose undo may not know it: deploy code that has it, then "
        f"`celeriac retry {claim.run_id}`; or `celeriac resolve {claim.run_id} {effect.call_id} "
        "--committed JSON` if it was undone by hand, or `--not-done` if it will not be undone"
    )
    return {"kind": "other_version", "message": message}


def is_by_hand(effect: Effect) -> bool:
    """Whether only people can do this, and have not been asked yet."""
    is_theirs = effect.undoes is not None and effect.undoes.kind is Rollback.OUT_OF_BAND
    return is_theirs and effect.state is EffectState.PLANNED


@contextmanager
def asked(
    database: Database, claim: Claim, effect: Effect
) -> Iterator[tuple[Connection, StepRecord]]:
    """The transaction in which people are asked to undo a call by hand, and what to commit in it.

    From then on nobody here can know whether it is done: the effect is `unknown` until somebody
    says so. Raises `Fenced` or `RequestsChanged`.
    """
    assert effect.undoes is not None
    why = str((effect.error or {}).get("message", "only people can take it back"))
    message = (
        f"call {effect.undoes.call_id} ({effect.tool.rpartition('.')[0]}) of run "
        f"{effect.undoes.run_id} has to be undone by hand: {why}. When that is done, say "
        f"`celeriac resolve {claim.run_id} {effect.call_id} --committed JSON`, or `--not-done` if "
        "it will not be undone"
    )
    error: Details = {"kind": "undo_by_hand", "message": message}
    told: Details = {"kind": Rollback.OUT_OF_BAND.value, "message": why}
    settled = SettledEffect(
        effect.call_id,
        EffectState.IN_FLIGHT,
        EffectState.UNKNOWN,
        error=told,
        is_attempt=True,
        evidence=told,
    )
    record = StepRecord(
        Next.needs_attention(Phase.WAITING_TOOL, error),
        StepKind.ACT,
        "undo_by_hand",
        advances=False,
        events=[Event("effect.unknown", {"call_id": effect.call_id, "tool": effect.tool})],
        settled=[settled],
    )
    with database.begin() as connection:
        effects.begin_attempt(connection, claim, effect.call_id, None, event="undo.requested")
        yield connection, record


def failed(claim: Claim, effect: Effect, settled: SettledEffect) -> tuple[Details, SettledEffect]:
    """What becomes of an undo that failed for good: the error that the run stops with, for a person
    to mend, and the undo as it stays, still to be made."""
    assert effect.undoes is not None
    assert settled.error is not None
    was_begun = settled.was in (EffectState.IN_FLIGHT, EffectState.UNKNOWN)
    message = (
        f"the undo of call {effect.undoes.call_id} ({effect.tool.rpartition('.')[0]}) of run "
        f"{effect.undoes.run_id} failed: {settled.error.get('message')}. Mend that and say "
        f"`celeriac retry {claim.run_id}`; or `celeriac resolve {claim.run_id} {effect.call_id} "
        "--committed JSON` if it was undone by hand, or `--not-done` if it will not be undone"
    )
    still = replace(
        settled,
        state=EffectState.NOT_DONE if was_begun else settled.was,
        evidence=settled.evidence or settled.error if was_begun else None,
    )
    return {"kind": "undo_failed", "message": message}, still
