"""The concierge: books a journey once a person agrees, and remembers what the traveller asks for.

    celeriac up --agents examples/concierge.py
    celeriac run concierge --user alice --input '"Book Kyoto. Remember that I prefer aisle seats."'
    celeriac approvals
    celeriac approve ID --as olga
    celeriac memories list --user alice
    celeriac run concierge --user alice --input '"Book Osaka."' --wait

Kill the worker while it waits for Olga, or right before the memory is written: the journey is
booked once, and the memory is there with its decision, or not at all. A script plays the model,
offline; CONCIERGE_MODEL=openai:gpt-5 puts a real one in its place.
"""

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from sqlalchemy import text

from celeriac import Agent, Approval, MemoryPolicy, ToolContext, tool
from celeriac.messages import opens_run
from celeriac.scripted import ScriptedModel, Turn, call, say

BOOKINGS = """
CREATE TABLE IF NOT EXISTS bookings (
    call_key text PRIMARY KEY, user_id text NOT NULL, journey text NOT NULL, seat text NOT NULL
)
"""
INSTRUCTIONS = """
You book journeys, in the seat that the traveller prefers if that is known. Remember what they ask
you to remember, with their own words as user_said.
"""


@tool(
    effect="transactional",
    approval=Approval(
        intent="Book {journey} in the seat: {seat}",
        blast_radius="one booking in our own table",
    ),
)
def book(ctx: ToolContext, journey: str, seat: str = "any") -> str:
    """Book a journey for the traveller."""
    ctx.connection.execute(text(BOOKINGS))
    ctx.connection.execute(
        text("INSERT INTO bookings VALUES (:key, :user_id, :journey, :seat)"),
        {"key": ctx.idempotency_key, "user_id": ctx.user_id, "journey": journey, "seat": seat},
    )
    return f"{journey} is booked, seat: {seat}"


def script(messages: Sequence[ModelMessage]) -> Turn:
    """What a model would do: book, remember, and tell."""
    opening = max(place for place, message in enumerate(messages) if opens_run(message))
    asked = _prompt(messages[opening])
    done = [
        part
        for message in messages[opening:]
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
    made = {part.tool_name for part in done}
    journey = re.search(r"Book (\w+)", asked)
    wish = re.search(r"Remember that (?:I prefer )?([^.]+)\.", asked)
    if journey is not None and "book" not in made:
        return call("book", journey=journey[1], seat=_preferred_seat(messages[:opening]))
    if wish is not None and "remember" not in made:
        return call("remember", key="seat", value=f"Prefers {wish[1]}", user_said=wish[0])
    return say(" ".join(str(part.content) for part in done) or "What can I do for you?")


def _prompt(message: ModelMessage) -> str:
    contents = [part.content for part in message.parts if isinstance(part, UserPromptPart)]
    return " ".join(each for each in contents if isinstance(each, str))


def _preferred_seat(messages: Sequence[ModelMessage]) -> str:
    """What the model is shown of memories stands before the traveller's words, one JSON a line."""
    for line in (line for message in messages for line in _prompt(message).splitlines()):
        if line.startswith("{"):
            memory: dict[str, Any] = json.loads(line)
            if memory.get("key") == "seat":
                return str(memory["value"])
    return "any"


concierge = Agent(
    "concierge",
    model=os.environ.get("CONCIERGE_MODEL") or ScriptedModel(script),
    instructions=INSTRUCTIONS.strip(),
    tools=[book],
    memory=MemoryPolicy(),
)
