"""An agent whose refund a person must approve, with a sibling that needs nobody."""

from celeriac import Agent, Approval, ToolContext, tool
from celeriac.scripted import ScriptedModel, ToolCall, Turn, say
from tests.crash.agents import QUEUE, _noted, tally


@tool(effect="external", approval=Approval())
def refund(ctx: ToolContext, label: str) -> str:
    """Pay back, and be counted."""
    with _noted(ctx):
        return label


refunds = Agent(
    "refunds",
    ScriptedModel(
        [
            Turn(
                calls=(ToolCall("refund", {"label": "money"}), ToolCall("tally", {"label": "seen"}))
            ),
            say("done"),
        ]
    ),
    tools=[refund, tally],
    queue=QUEUE,
)
"""Step 0 proposes the refund; step 1 tallies and pauses; step 2 makes the approved call."""
