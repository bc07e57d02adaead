"""The agents that are measured."""

import base64
import random
import time
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage

from celeriac.agent import Agent
from celeriac.context import ToolContext
from celeriac.limits import Limits
from celeriac.scripted import ScriptedModel, ToolCall, Turn, turn_number
from celeriac.tools import tool
from celeriac_storage import measuring

PAYLOAD_BYTES = 1024
LIMITS = Limits(steps=1_000_000, tool_calls=1_000_000, tokens=10**12)


def payload(seed: str, size: int = PAYLOAD_BYTES) -> str:
    """`size` bytes of text that no compression helps with, the same for the same seed."""
    return base64.b64encode(random.Random(seed).randbytes(size)).decode()[:size]  # noqa: S311


@tool(effect="transactional")
def insert_row(ctx: ToolContext) -> str:
    """Insert one business row; answers with 1 KB."""
    measuring.insert_effect(ctx.connection, ctx.run_id, ctx.call_id)
    return payload(ctx.idempotency_key)


@tool(effect="none")
def hold_still(seconds: float) -> str:
    """Wait, so that there is something to kill."""
    time.sleep(seconds)
    return "held"


def _work(turns: int) -> ScriptedModel:
    """A model that asks for `turns` rows, one at a time, with 1 KB of text each; then it is
    done.
    """

    def answer(messages: Sequence[ModelMessage]) -> Turn:
        number = turn_number(messages)
        if number >= turns:
            return Turn(text="done")
        return Turn(payload(f"{number}"), calls=(ToolCall("insert_row", {}),))

    return ScriptedModel(answer)


def _thoughts() -> ScriptedModel:
    """A model that thinks 1 KB at a time and is never finished."""
    return ScriptedModel(
        lambda messages: Turn(payload(f"{turn_number(messages)}"), is_suspended=True)
    )


throughput = Agent("bench-throughput", _work(10), tools=[insert_row], limits=LIMITS)
"""21 transitions: ten times think and act, and the think that ends it."""

growth_with_effects = Agent(
    "bench-growth-effects", _work(1_000_000), tools=[insert_row], limits=LIMITS
)
growth_of_thoughts = Agent("bench-growth-thoughts", _thoughts(), limits=LIMITS)

failover = Agent(
    "bench-failover",
    ScriptedModel(
        [
            Turn(calls=(ToolCall("insert_row", {}),)),
            Turn(calls=(ToolCall("hold_still", {"seconds": 0.8}),)),
            Turn(calls=(ToolCall("insert_row", {}),)),
            Turn(text="done"),
        ]
    ),
    tools=[insert_row, hold_still],
    limits=LIMITS,
)
