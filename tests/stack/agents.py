"""An agent for stacks that are killed: it needs no table, no network and no key."""

from celeriac import Agent, tool
from celeriac.scripted import ScriptedModel, call, say


@tool(effect="none")
def look() -> str:
    """Look around."""
    return "all quiet"


watchman = Agent(
    "watchman", ScriptedModel([call("look"), say("all is well")]), "You keep watch.", [look]
)
