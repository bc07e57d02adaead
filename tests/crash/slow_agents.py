"""An agent whose model is a provider of the test's own, which answers late or never.

A module of its own: the provider's SDK takes seconds to import.
"""

import os

from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from celeriac import Agent
from tests.crash.agents import QUEUE

PROVIDER_URL = "CRASH_TEST_PROVIDER_URL"

slow = Agent(
    "slow",
    OpenAIChatModel(
        "gpt-test",
        provider=OpenAIProvider(
            base_url=os.environ.get(PROVIDER_URL, "http://127.0.0.1:9/v1"), api_key="sk-test"
        ),
    ),
    queue=QUEUE,
)
