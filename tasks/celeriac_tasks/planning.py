"""The calls of a model's response: checked, made into planned effects, and proposed to people."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from pydantic_ai.messages import ToolCallPart

from celeriac.approval import Requirement
from celeriac.codec import JsonValue, stored_form
from celeriac.errors import InvalidArguments
from celeriac.ids import CallId, call_id
from celeriac.states import EffectKind, EffectState
from celeriac.tool_flags import ToolFlags
from celeriac.tools import Tool, parse_arguments
from celeriac_storage.approvals import Proposal
from celeriac_storage.claims import Claim
from celeriac_storage.effects import Effect
from celeriac_storage.step_record import PlannedEffect
from celeriac_tasks.approving import propose
from celeriac_tasks.loaded_agent import LoadedAgent

_UNKNOWN_TOOL_VERSION = "-"


def plan(loaded: LoadedAgent, step: int, calls: Sequence[ToolCallPart]) -> list[PlannedEffect]:
    """Each call of the response, with its id; what cannot be made is `invalid` and says why."""
    return [_planned_call(loaded, step, index, call) for index, call in enumerate(calls)]


def proposed(
    loaded: LoadedAgent, claim: Claim, planned: Sequence[PlannedEffect], said: str
) -> tuple[list[PlannedEffect], list[Proposal]]:
    """The calls, with those that need a person's decision proposed, and their proposals."""
    calls: list[PlannedEffect] = []
    proposals: list[Proposal] = []
    for effect in planned:
        if effect.requirement is None:
            calls.append(effect)
            continue
        tool, requirement = loaded.tools[effect.tool], Requirement.from_json(effect.requirement)
        try:
            proposal = propose(
                loaded, claim, tool, effect.call_id, effect.arguments, requirement, said
            )
        except InvalidArguments as error:
            refused = _refused("invalid_arguments", str(error))
            calls.append(
                replace(effect, state=EffectState.INVALID, error=refused, requirement=None)
            )
        else:
            calls.append(replace(effect, state=EffectState.PROPOSED))
            proposals.append(proposal)
    return calls, proposals


def unproposed(effect: PlannedEffect) -> PlannedEffect:
    """The run ends with this response, so nobody is asked."""
    is_proposed = effect.state is EffectState.PROPOSED
    return replace(effect, state=EffectState.PLANNED) if is_proposed else effect


def as_stored(planned: PlannedEffect) -> Effect:
    """The effect as the next step would load it."""
    return Effect(
        planned.call_id,
        planned.provider_call_id,
        planned.tool,
        planned.tool_version,
        planned.kind,
        stored_form(planned.arguments),
        planned.state,
        attempt=0,
        token=None,
        result=None,
        error=planned.error,
        is_exclusive=bool(planned.flags and planned.flags.get("exclusive")),
        requirement=planned.requirement,
        is_elsewhere=bool(planned.flags and planned.flags.get("elsewhere")),
        mutates_workspace=bool(planned.flags and planned.flags.get("mutates_workspace")),
        verifies=bool(planned.flags and planned.flags.get("verifies")),
        is_child=bool(planned.flags and planned.flags.get("child")),
        is_sleep=bool(planned.flags and planned.flags.get("sleeps")),
        is_handoff=bool(planned.flags and planned.flags.get("handoff")),
    )


def _planned_call(loaded: LoadedAgent, step: int, index: int, call: ToolCallPart) -> PlannedEffect:
    tool = loaded.tools.get(call.tool_name)
    identity = (call_id(step, index), index, call.tool_call_id, call.tool_name)
    if tool is None:
        known = ", ".join(sorted(loaded.tools)) or "none"
        return PlannedEffect(
            *identity,
            _UNKNOWN_TOOL_VERSION,
            EffectKind.EXTERNAL,
            _as_sent(call),
            EffectState.INVALID,
            _refused(
                "unknown_tool", f"there is no tool {call.tool_name!r}; the tools are: {known}"
            ),
        )
    try:
        arguments = tool.validate(parse_arguments(call.args))
        if stored_form(arguments) != arguments:
            raise InvalidArguments(
                f"the arguments of {tool.name} hold a secret, which is not stored, so that nothing "
                "could be executed as it was asked for: name the secret instead of sending it"
            )
    except InvalidArguments as error:
        return PlannedEffect(
            *identity,
            tool.version,
            tool.effect,
            _as_sent(call),
            EffectState.INVALID,
            _refused("invalid_arguments", str(error)),
        )
    return planned_call(tool, call_id(step, index), index, call.tool_call_id, arguments)


def planned_call(
    tool: Tool[..., Any], call: CallId, index: int, provider_call_id: str, arguments: JsonValue
) -> PlannedEffect:
    """A call with arguments that are valid, and the review that it needs."""
    effect = PlannedEffect(
        call,
        index,
        provider_call_id,
        tool.name,
        tool.version,
        tool.effect,
        arguments,
        flags=_flags(tool.flags),
    )
    if tool.approval is None:
        return effect
    requirement = tool.approval.requirement(arguments, tool.rollback)
    return replace(effect, requirement=None if requirement is None else requirement.to_json())


@cache  # every call of a tool has the tool's own
def _flags(flags: ToolFlags) -> dict[str, JsonValue] | None:
    """The flags that are set, which is mostly none."""
    return {name: True for name, is_set in asdict(flags).items() if is_set} or None


def _as_sent(call: ToolCallPart) -> JsonValue:
    return call.args if isinstance(call.args, str) else {"sent": str(call.args)}


def _refused(kind: str, message: str) -> dict[str, JsonValue]:
    return {"kind": kind, "message": message}
