"""What `ctx.wait_approval` is: a call of a tool that does nothing, and that people decide about."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celeriac.approval import Approval
from celeriac.codec import JsonValue
from celeriac.states import EffectState
from celeriac.tools import Tool, tool

NAME = "wait_approval"

_REFUSALS = (EffectState.REJECTED, EffectState.EXPIRED)


@tool(effect="none", name=NAME, approval=Approval())
def _decide(intent: str, details: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - for people
    """Have people decide about something.

    Args:
        intent: What is to be done.
        details: With what; people may change them.
    """
    return {"is_approved": True, "arguments": details}


DECISION: Tool[..., Any] = _decide


def decision_tool(terms: Mapping[str, Any]) -> Tool[..., Any]:
    """The same with who must agree, as the workflow's code says."""
    approval = Approval.from_json(terms)
    return replace(
        DECISION,
        approval=replace(
            approval,
            blast_radius=approval.blast_radius or "what the workflow does then: {details}",
            immutable=[*approval.immutable, "intent"],
            on_reject="tell",
        ),
    )


def refusal(tool: str, state: EffectState, error: Mapping[str, JsonValue]) -> JsonValue:
    """What the code is told of a decision that is none for it; None if it is told of an error."""
    if tool != NAME or state not in _REFUSALS:
        return None
    return {"is_approved": False, "reason": error.get("message")}
