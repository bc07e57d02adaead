"""A question is looked into by a plan: searches side by side, then a comparison, then an answer.

    celeriac up --agents examples/research_plan.py
    celeriac run planner --input '"Which room should hold the seed potatoes?"' --wait
    celeriac runs --agent research
    celeriac plan show RUN

The planner lays the plan out, `research` executes it, and what came of it is the planner's to tell.
No key is needed: scripts play the models.
"""

import os
from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage

from celeriac import Agent, Plan, PlanRunner, PlanStep, result_of, tool
from celeriac.scripted import ScriptedModel, Turn, call, say, turn_number

ROOMS = {
    "north": {"celsius": 4, "humidity": 90},
    "south": {"celsius": 11, "humidity": 60},
    "cellar": {"celsius": 6, "humidity": 95},
}


@tool(effect="none")
def search(room: str) -> dict[str, int]:
    """Look up what is measured in a storage room."""
    return ROOMS[room]


def compare(messages: Sequence[ModelMessage]) -> Turn:
    """The model of `research`, which is asked about what was found."""
    asked = str(messages[-1])
    return say("north, at 4 °C" if '"celsius":4' in asked else "none of them")


def write(messages: Sequence[ModelMessage]) -> Turn:
    """The writer, who is given the winner."""
    winner = "north" if "north" in str(messages[-1]) else "none"
    return say(f"Keep the seed potatoes in the room {winner}.")


PLAN = Plan(
    [
        *(PlanStep(f"search-{room}", tool="search", arguments={"room": room}) for room in ROOMS),
        PlanStep(
            "compare",
            question="Which room is the coldest that does not freeze?",
            arguments={room: result_of(f"search-{room}") for room in ROOMS},
            needs=[f"search-{room}" for room in ROOMS],
        ),
        PlanStep("write", agent="writer", arguments=result_of("compare"), needs=["compare"]),
    ],
    goal="Find the room for the seed potatoes",
    output=result_of("write"),
)


def lay_out(messages: Sequence[ModelMessage]) -> Turn:
    """The planner: make a plan, then tell what came of it."""
    if turn_number(messages) == 0:
        return call("research", input=PLAN.to_json())
    return say(_last_result(messages))


def _last_result(messages: Sequence[ModelMessage]) -> str:
    told: Any = messages[-1].parts[-1]
    return str(told.content)


MODEL = os.environ.get("RESEARCH_PLAN_MODEL")

writer = Agent(
    "writer",
    model=MODEL or ScriptedModel(write),
    instructions="You write an answer of one sentence.",
    description="Writes the answer.",
    input=str,
)
research = PlanRunner(
    "research",
    tools=[search],
    agents=[writer],
    model=MODEL or ScriptedModel(compare),
)
planner = Agent(
    "planner",
    model=MODEL or ScriptedModel(lay_out),
    instructions="Lay out a plan that answers the question, and then tell the answer.",
    tools=[research.as_tool()],
)
