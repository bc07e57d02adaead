"""A report that is written every night: a schedule starts the writer, who asks a colleague.

    celeriac up --agents examples/nightly_report.py
    celeriac schedules add nightly report-writer --cron "30 2 * * *" --time-zone Europe/Berlin \
        --input '{"day": "yesterday"}'
    celeriac schedules trigger nightly

The analyst runs as a child of the writer's run: it has its own steps, limits and history, and the
writer's run holds no worker while it waits. No key is needed: scripts play the models.
"""

import json
import os
from typing import Any

from pydantic import BaseModel

from celeriac import Agent, Limits, tool
from celeriac.scripted import ScriptedModel, Turn, call, say, turn_number

SALES = {"A-7": 12, "B-2": 3}


class Day(BaseModel):
    """What a report is about."""

    day: str


@tool(effect="none")
def sales_of(day: str) -> dict[str, int]:
    """Read how many of each item were sold on a day."""
    return SALES if day == "yesterday" else {}


def count(messages: Any) -> Turn:
    """The analyst: look at the sales, then name the best one."""
    if turn_number(messages) == 0:
        return call("sales_of", day="yesterday")
    sales = _last_result(messages)
    best = max(sales, key=lambda item: sales[item])
    return say(f"{best} sold best, {sales[best]} of {sum(sales.values())}")


def _last_result(messages: Any) -> dict[str, int]:
    content = messages[-1].parts[-1].content
    found: dict[str, int] = json.loads(content) if isinstance(content, str) else content
    return found


def write(messages: Any) -> Turn:
    """The writer: have the analyst look, then write a line."""
    if turn_number(messages) == 0:
        return call("analyst", input={"day": "yesterday"})
    told = messages[-1].parts[-1].content
    return say(f"Report: {told}.")


MODEL = os.environ.get("NIGHTLY_REPORT_MODEL")

analyst = Agent(
    "analyst",
    model=MODEL or ScriptedModel(count),
    instructions="You look at the sales of a day, and say in one sentence what stands out.",
    description="Looks at the sales of a day and says what stands out.",
    tools=[sales_of],
    input=Day,
)
writer = Agent(
    "report-writer",
    model=MODEL or ScriptedModel(write),
    instructions="You write the nightly report. Ask the analyst about the day first.",
    tools=[analyst.as_tool()],
    input=Day,
    # A report that is not there by the morning is not needed any more.
    limits=Limits(deadline_seconds=4 * 3600),
)
