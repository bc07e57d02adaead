"""Agents whose use is counted: one by a provider that bills, one whose model is scripted."""

import os
from decimal import Decimal

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from celeriac import Agent, Price
from celeriac.scripted import ScriptedModel, ToolCall, Turn
from tests.crash.agents import QUEUE, look, tally

TURN_TOKENS = 120


def _model() -> OpenAIChatModel:
    url = os.environ.get("BILLING_URL", "http://127.0.0.1:9/v1")
    provider = OpenAIProvider(base_url=url, api_key="sk-test-0123456789abcdef")
    return OpenAIChatModel("gpt-test", provider=provider)


billed = Agent(
    "billed",
    _model(),
    tools=[tally],
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
            Turn(calls=(ToolCall("tally", {"label": "a"}),), delay_seconds=0.05),
            Turn(calls=(ToolCall("tally", {"label": "b"}),), delay_seconds=0.05),
            Turn(text="done", delay_seconds=0.05),
        ]
    ),
    tools=[tally],
    max_output_tokens=50,
    queue=QUEUE,
)
"""Asks its model three times, each for `TURN_TOKENS` tokens."""
