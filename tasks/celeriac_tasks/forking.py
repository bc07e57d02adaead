"""The first step of a fork that begins among the calls of a response.

They were asked for in the run that it is a fork of, and are planned here once more, by the code
that this worker has and under keys of this run. Only then is one of them made. A fork that begins
where the model is to be asked needs no such step.
"""

from dataclasses import replace

from pydantic_ai.messages import ToolCallPart

from celeriac.codec import JsonValue
from celeriac.ids import call_id
from celeriac.messages import results_message
from celeriac.states import EffectState, Phase, StepKind
from celeriac_storage import forks
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.effects import Effect
from celeriac_storage.history import StoredResult
from celeriac_storage.step_record import Event, Message, Next, PlannedEffect, StepRecord
from celeriac_tasks import delegating
from celeriac_tasks.approving import WAIT_FOR_PEOPLE, proposal_events
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.lookback import call_result
from celeriac_tasks.planning import as_stored, plan, proposed
from celeriac_tasks.transition import Transition


def begin(database: Database, loaded: LoadedAgent, claim: Claim) -> Transition | None:
    """The step that plans the calls; None if this is not the first step of such a fork."""
    if claim.step or claim.history_until is None or claim.is_child:
        return None
    with database.connect() as connection:
        carried = forks.carried(connection, claim.run_id)
    if carried is None:
        return None
    if carried.doubtful:
        why = forks.what_is_doubtful(carried.origin, carried.doubtful[0])
        then = f"; then `celeriac retry {claim.run_id}`"
        return _attention("unknown_effect", why + then)
    for call in carried.to_be_made:
        if call.state is not EffectState.INVALID and call.tool not in loaded.tools:
            return _attention(
                "missing_tool",
                f"tool {call.tool} of call {call.call_id} of run {carried.origin} is no longer "
                f"part of agent {claim.agent}: deploy code that has it, then `celeriac retry "
                f"{claim.run_id}`",
            )
    planned = [_planned(loaded, claim, call) for call in carried.to_be_made]
    planned, proposals = proposed(loaded, claim, delegating.checked(loaded, claim, planned), "")
    following = Next.queued(Phase.WAITING_TOOL if planned else Phase.WAITING_MODEL)
    if planned and all(effect.state is EffectState.PROPOSED for effect in planned):
        following = WAIT_FOR_PEOPLE
    pending: list[JsonValue] = [effect.call_id for effect in planned]
    told: list[JsonValue] = [call.call_id for call in carried.known]
    calls: list[JsonValue] = [
        {"call_id": effect.call_id, "tool": effect.tool, "state": effect.state}
        for effect in planned
    ]
    event: dict[str, JsonValue] = {"run_id": carried.origin, "calls": calls, "told": told}
    results = [_result(call) for call in carried.known]
    return Transition(
        StepRecord(
            next=following,
            kind=StepKind.THINK,
            reason="forked",
            state={"pending": pending} if pending else {},
            # By reference: what a call of another run has done is no effect of this one.
            messages=[Message("results", {"run": carried.origin, "calls": told})] if told else [],
            events=[
                Event("fork.planned", event),
                *proposal_events(proposals, {effect.call_id: effect.tool for effect in planned}),
            ],
            planned=planned,
            proposed=proposals,
            tool_calls=len(planned),
        ),
        [results_message([call_result(result) for result in results])] if told else [],
        [as_stored(effect) for effect in planned],
    )


def _planned(loaded: LoadedAgent, claim: Claim, call: Effect) -> PlannedEffect:
    """The call as this worker's code takes it, under its place in the model's response."""
    index = int(call.call_id.rpartition(".")[2])
    arguments = call.arguments
    asked = ToolCallPart(
        call.tool,
        arguments if isinstance(arguments, str | dict) else None,
        call.provider_call_id,
    )
    (planned,) = plan(loaded, claim.step, [asked])
    return replace(planned, call_id=call_id(claim.step, index), call_index=index)


def _result(call: Effect) -> StoredResult:
    return StoredResult(call.call_id, call.provider_call_id, call.tool, call.result, call.error)


def _attention(kind: str, message: str) -> Transition:
    error: dict[str, JsonValue] = {"kind": kind, "message": message}
    following = Next.needs_attention(Phase.WAITING_MODEL, error)
    return Transition(StepRecord(following, StepKind.THINK, kind, advances=False))
