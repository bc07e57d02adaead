"""An agent made ready to run: its model resolved, its tools by name, its schemas built once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.tools import ToolDefinition

from celeriac.agent import Agent
from celeriac.models import resolve_model
from celeriac.tools import Tool
from celeriac.undo_tool import undo_tool


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

    def for_rollback(self) -> "LoadedAgent":
        """The same with what takes calls back in the place of what makes them."""
        return replace(self, tools=self.undos)


def load_agent(agent: Agent) -> LoadedAgent:
    """Raises `InvalidAgent` if the model's name or its key is no good."""
    return LoadedAgent(
        agent=agent,
        model=resolve_model(agent.model),
        tools={tool.name: tool for tool in agent.tools},
        undos={undo.name: undo for tool in agent.tools if (undo := undo_tool(tool)) is not None},
        definitions=[tool.definition() for tool in agent.tools],
        agent_hash=agent.agent_hash,
        tools_hash=agent.tools_hash,
        prompt_hash=agent.prompt_hash,
    )
