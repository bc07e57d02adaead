"""Agents as tools of other agents: a call is answered by a run of its own.

orders = Agent("orders", model, "You know orders.")
desk = Agent("desk", model, "You answer customers.", tools=[orders.as_tool()])
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celeriac.approval import Approval
from celeriac.errors import InvalidAgent
from celeriac.tools import Tool, tool

if TYPE_CHECKING:
    from celeriac.agent import Agent

INPUT = "input"
"""The one parameter of such a tool: the input of the run."""


def agent_tool(
    agent: "Agent",
    name: str | None = None,
    description: str | None = None,
    *,
    is_handoff: bool = False,
    approval: Approval | None = None,
) -> Tool[..., Any]:
    """The tool whose calls runs of `agent` answer; see `Agent.as_tool` and `Agent.as_handoff`."""

    def answered_elsewhere(input: Any) -> Any:  # noqa: A002 - what the model is shown
        raise AssertionError(f"a run answers this call, and no function: {input!r}")

    task = str if agent.input_type is None else agent.input_type
    answered_elsewhere.__annotations__ = {INPUT: task, "return": str}
    answered_elsewhere.__doc__ = description or agent.description or _description(agent, is_handoff)
    called = name or (f"hand_off_to_{agent.name}" if is_handoff else agent.name)
    try:
        made = tool(effect="external", name=called, approval=approval)(answered_elsewhere)
        flags = replace(made.flags, stateful=False, child=True, handoff=is_handoff)
        return replace(made, flags=flags, agent=agent)
    except InvalidAgent as error:
        raise InvalidAgent(f"agent {agent.name} as a tool: {error}") from error


def _description(agent: "Agent", is_handoff: bool) -> str:
    if is_handoff:
        return f"Hand the conversation over to {agent.name}, who answers from then on."
    return f"Have {agent.name} do something. It sees only the input, so say all that it must know."
