"""Agents whose text is read while it is written.

`storyteller` asks a provider of the test's own, which can stall in the middle of its answer.
"""

import os

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from celeriac import Agent
from celeriac.scripted import ScriptedModel, Turn, call
from tests.crash.agents import QUEUE, tally

PROVIDER_URL = "STREAMING_TEST_PROVIDER_URL"

storyteller = Agent(
    "storyteller",
    OpenAIChatModel(
        "gpt-test",
        provider=OpenAIProvider(
            base_url=os.environ.get(PROVIDER_URL, "http://127.0.0.1:9/v1"),
            api_key="sk-test-0123456789abcdef",
        ),
    ),
    tools=[tally],
    queue=QUEUE,
    stream=True,
)

WORDS = [f"word{number} " for number in range(12)]
SCRIPT = [
    Turn(text="First I count. ", calls=call("tally", label="one").calls, word_seconds=0.01),
    Turn(text="".join(WORDS), word_seconds=0.02),
]

reciter = Agent("reciter", ScriptedModel(SCRIPT), tools=[tally], queue=QUEUE, stream=True)
quiet = Agent("quiet", ScriptedModel(SCRIPT), tools=[tally], queue=QUEUE)
