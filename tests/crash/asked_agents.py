"""Agents that are asked things while their workers are killed (`test_requests`)."""

from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage, UserPromptPart

from celeriac import Agent, external_tool
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say, turn_number
from tests.crash.agents import QUEUE, wait_at


def _listen(messages: Sequence[ModelMessage]) -> Turn:
    """Wait at the gate `gate`, then repeat all that was ever said."""
    if turn_number(messages) == 0:
        return call("wait_at", gate="gate")
    prompts = [p.content for m in messages for p in m.parts if isinstance(p, UserPromptPart)]
    return say(", ".join(map(str, prompts)))


@external_tool
def scan(shelf: str) -> int:
    """Have somebody scan a shelf."""
    raise AssertionError(f"no worker executes this: {shelf}")


listener = Agent("listener", ScriptedModel(_listen), tools=[wait_at], queue=QUEUE)

scanner = Agent(
    "scanner",
    ScriptedModel(
        [Turn(calls=tuple(ToolCall("scan", {"shelf": name}) for name in "ab")), say("done")]
    ),
    tools=[scan],
    queue=QUEUE,
)
"""Requests two calls in step 1."""
