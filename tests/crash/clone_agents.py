"""An agent with a step of each kind, which leaves nothing outside of its database."""

from celeriac import Agent, ToolContext, tool
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
from tests.crash.agents import QUEUE


@tool(effect="none")
def look() -> str:
    """Look at a shelf."""
    return "empty"


@tool(effect="transactional")
def book(ctx: ToolContext, what: str) -> str:
    """Write a row."""
    ctx.connection.exec_driver_sql(
        "INSERT INTO crash.tally (run_id, call_id, label) VALUES (%s, %s, %s)",
        (ctx.run_id, ctx.call_id, what),
    )
    return "booked"


@tool(effect="external")
def order(what: str) -> str:
    """Order something, without a way to ask afterwards."""
    return f"{what} ordered"


@tool(effect="external", on_unknown="resend")
def remind(what: str) -> str:
    """Remind somebody, who does not mind to be reminded twice under one key."""
    return f"{what} reminded"


cloned = Agent(
    "cloned",
    ScriptedModel(
        [
            call("look"),
            call("book", what="ink"),
            call("order", what="ink"),
            call("remind", what="ink"),
            say("done"),
        ]
    ),
    tools=[look, book, order, remind],
    queue=QUEUE,
)

pair = Agent(
    "pair",
    ScriptedModel(
        [
            Turn(calls=(ToolCall("book", {"what": "ink"}), ToolCall("book", {"what": "pens"}))),
            say("done"),
        ]
    ),
    tools=[book],
    queue=QUEUE,
)
