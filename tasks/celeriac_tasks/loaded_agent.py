"""An agent made ready to run: its model resolved, its tools by name, its schemas built once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.tools import ToolDefinition

from celeriac.agent import Agent
from celeriac.context_policy import LEAST_TOKENS, ContextPolicy
from celeriac.errors import InvalidAgent
from celeriac.models import resolve_model
from celeriac.scripted import ScriptedModel
from celeriac.states import RunKind
from celeriac.token_count import json_tokens, text_tokens
from celeriac.tools import Tool
from celeriac.undo_tool import undo_tool
from celeriac.workflows.definition import Workflow
from celeriac_tasks.decision_tool import DECISION


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    agent: Agent
    model: Model
    tools: Mapping[str, Tool[..., Any]]
    undos: Mapping[str, Tool[..., Any]]  # by their own names, as tools of a rollback
    definitions: Sequence[ToolDefinition]
    agent_hash: str
    tools_hash: str
    prompt_hash: str
    fixed_tokens: int = 0  # of every question: the instructions and the tools, as estimated
    room: int | None = None  # tokens that are left for messages; None: they are all sent

    def for_run(self, kind: RunKind) -> "LoadedAgent":
        """The same as a run of this kind needs it: with what takes calls back in the place of what
        makes them; or, of a workflow's question to its model, without tools."""
        if kind is RunKind.ROLLBACK:
            return replace(self, tools=self.undos)
        if kind is RunKind.AGENT and isinstance(self.agent, Workflow):
            return replace(self, tools={}, definitions=())
        return self


def load_agent(agent: Agent) -> LoadedAgent:
    """Raises `InvalidAgent` if the model's name or its key is no good, or no question fits."""
    model = resolve_model(agent.model)
    definitions = [tool.definition() for tool in agent.tools]
    fixed_tokens = text_tokens(agent.instructions) + sum(
        text_tokens(f"{each.name}{each.description or ''}")
        + json_tokens(each.parameters_json_schema)
        for each in definitions
    )
    return LoadedAgent(
        agent=agent,
        model=model,
        tools={tool.name: tool for tool in _tools_of(agent)},
        undos={undo.name: undo for tool in agent.tools if (undo := undo_tool(tool)) is not None},
        definitions=definitions,
        agent_hash=agent.agent_hash,
        tools_hash=agent.tools_hash,
        prompt_hash=agent.prompt_hash,
        fixed_tokens=fixed_tokens,
        room=_room(agent, model, fixed_tokens),
    )


def _tools_of(agent: Agent) -> Sequence[Tool[..., Any]]:
    return (*agent.tools, DECISION) if isinstance(agent, Workflow) else agent.tools


def _room(agent: Agent, model: Model, fixed_tokens: int) -> int | None:
    policy = agent.context
    if policy is None:
        # A script that counts its turns must see all of them.
        policy = None if isinstance(model, ScriptedModel) else ContextPolicy()
    if policy is None:
        return None
    room = policy.max_tokens - fixed_tokens
    if room < LEAST_TOKENS // 2:
        raise InvalidAgent(
            f"agent {agent.name}: its instructions and tools take about {fixed_tokens} tokens of "
            f"the {policy.max_tokens} that its context allows, so that no conversation fits; allow "
            "more with context=ContextPolicy(max_tokens=...)"
        )
    return room
