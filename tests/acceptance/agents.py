"""Small agents, each for one question that the acceptance tests ask."""

import json
import os
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import Model
from sqlalchemy import Engine, create_engine, make_url, text

from celeriac import Agent, Limits, ToolContext, tool
from celeriac.ids import DEFAULT_QUEUE
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say, turn_number

QUEUE = os.environ.get("CELERIAC_QUEUES", DEFAULT_QUEUE)
PROVIDER = "ACCEPTANCE_PROVIDER_URL"  # of the model that takes the script's place, if it is set

CREATE_TABLES = """
CREATE SCHEMA acceptance;
CREATE TABLE acceptance.calls (
    run_id text NOT NULL,
    tool text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""
"""A row for each call that begins, in a transaction of its own."""

ANSWER = "The answer is 42, says the handbook of marsupials."
LARGE_ANSWER = ANSWER + " Again:" + 2000 * f" {ANSWER}"  # more than a row should hold


def _note(ctx: ToolContext) -> None:
    with _engine().begin() as connection:
        connection.execute(
            text("INSERT INTO acceptance.calls (run_id, tool) VALUES (:run_id, :tool)"),
            {"run_id": ctx.run_id, "tool": ctx.tool},
        )


def _engine() -> Engine:
    url = make_url(os.environ["CELERIAC_DATABASE_URL"]).set(drivername="postgresql+psycopg")
    return create_engine(url, pool_size=1)


@tool(effect="none")
def look_up(ctx: ToolContext, question: str) -> str:
    """Look into the handbook."""
    _note(ctx)
    return LARGE_ANSWER if "everything" in question else ANSWER


@tool(effect="external")
def ring(ctx: ToolContext, times: int = 1) -> str:
    """Ring a bell, which everybody hears."""
    _note(ctx)
    return f"rang {times} times"


def _all_that_was_shown(messages: Sequence[ModelMessage]) -> Turn:
    if turn_number(messages) == 0:
        return call("look_up", question="what for?")
    return say(json.dumps([repr(message) for message in messages]))


witness = Agent(
    "witness", ScriptedModel(_all_that_was_shown), "Be exact.", tools=[look_up], queue=QUEUE
)
"""Answers with all that it was shown."""

librarian = Agent(
    "librarian",
    ScriptedModel(
        lambda messages: (
            say("found it")
            if turn_number(messages)
            else call("look_up", question="everything" if "all" in repr(messages) else "it")
        )
    ),
    tools=[look_up],
    queue=QUEUE,
)
"""Looks something up, or everything if it is asked for all."""

endless = Agent(
    "endless",
    ScriptedModel(lambda _: call("look_up", question="and then?")),
    tools=[look_up],
    limits=Limits(steps=5),
    queue=QUEUE,
)

mumbler = Agent(
    "mumbler",
    ScriptedModel(
        [
            Turn(calls=(ToolCall("ring", '{"times": '),)),
            Turn(calls=(ToolCall("ring", ""),)),
            Turn(calls=(ToolCall("ring", '{"times": "often"}'),)),
            say("nobody was disturbed"),
        ]
    ),
    tools=[ring],
    queue=QUEUE,
)
"""Asks for calls that cannot be made."""


def _model() -> Model:
    if url := os.environ.get(PROVIDER):
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel("other", provider=OpenAIProvider(base_url=url, api_key="unused"))
    return ScriptedModel([call("look_up", question="what?"), say("said by the script")])


exchangeable = Agent("exchangeable", _model(), tools=[look_up], queue=QUEUE)
