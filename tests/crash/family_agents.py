"""Agents that start runs of each other while their workers are killed (`test_children`)."""

from celeriac import Agent, sleep
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
from tests.crash.agents import QUEUE, tally

CHILDREN = 2
LAST = 4
"""The child's last step: no other run has as many."""

child = Agent(
    "child",
    ScriptedModel([call("tally", label="first"), call("tally", label="second"), say("counted")]),
    tools=[tally],
    queue=QUEUE,
)
mother = Agent(
    "mother",
    ScriptedModel(
        [
            Turn(calls=tuple(ToolCall("child", {"input": str(n)}) for n in range(CHILDREN))),
            say("both have counted"),
        ]
    ),
    tools=[child.as_tool()],
    queue=QUEUE,
)
patient = Agent(
    "patient", ScriptedModel([call("sleep", seconds=3600), say("awake")]), tools=[sleep],
    queue=QUEUE,
)  # fmt: skip
