"""Agents whose use is counted: one by a provider that bills, one whose model is scripted."""

import os
from decimal import Decimal

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from sqlalchemy import text

from celeriac import Agent, Price, ToolContext, tool
from celeriac.ids import DEFAULT_QUEUE
from celeriac.scripted import ScriptedModel, ToolCall, Turn
from tests.crash.agents import look

QUEUE = os.environ.get("CELERIAC_QUEUES", DEFAULT_QUEUE)
TURN_TOKENS = 120


@tool(effect="transactional")
def count(ctx: ToolContext, label: str) -> str:
    """Write one row in the step's transaction."""
    ctx.connection.execute(
        text("INSERT INTO crash.tally VALUES (:run_id, :call_id, :label)"),
        {"run_id": ctx.run_id, "call_id": ctx.call_id, "label": label},
    )
    return label


def _model() -> OpenAIChatModel:
    url = os.environ.get("BILLING_URL", "http://127.0.0.1:9/v1")
    provider = OpenAIProvider(base_url=url, api_key="sk-test-0123456789abcdef")
    return OpenAIChatModel("gpt-test", provider=provider)


billed = Agent(
    "billed",
    _model(),
    tools=[count],
    max_output_tokens=50,
    price=Price(Decimal(1), Decimal(10)),
    queue=QUEUE,
)
"""Does what the provider says."""

reader = Agent("reader", _model(), tools=[look], queue=QUEUE)

frugal = Agent(
    "frugal",
    ScriptedModel(
        [
            Turn(calls=(ToolCall("count", {"label": "a"}),), delay_seconds=0.05),
            Turn(calls=(ToolCall("count", {"label": "b"}),), delay_seconds=0.05),
            Turn(text="done", delay_seconds=0.05),
        ]
    ),
    tools=[count],
    max_output_tokens=50,
    queue=QUEUE,
)
"""Asks its model three times, each for `TURN_TOKENS` tokens."""
