"""An agent made ready to run: its model resolved, its tools by name, its schemas built once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.models import Model
from pydantic_ai.tools import ToolDefinition

from celeriac.agent import Agent
from celeriac.models import resolve_model
from celeriac.tools import Tool


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    agent: Agent
    model: Model
    tools: Mapping[str, Tool[..., Any]]
    definitions: Sequence[ToolDefinition]
    agent_hash: str
    tools_hash: str
    prompt_hash: str


def load_agent(agent: Agent) -> LoadedAgent:
    """Raises `InvalidAgent` if the model's name or its key is no good."""
    return LoadedAgent(
        agent=agent,
        model=resolve_model(agent.model),
        tools={tool.name: tool for tool in agent.tools},
        definitions=[tool.definition() for tool in agent.tools],
        agent_hash=agent.agent_hash,
        tools_hash=agent.tools_hash,
        prompt_hash=agent.prompt_hash,
    )
