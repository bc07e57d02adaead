"""An agent that finds its user's memories by vectors as well."""

from celeriac import Agent, MemoryPolicy
from celeriac.memory import HashingEmbedder
from celeriac.scripted import ScriptedModel, say
from tests.crash.agents import QUEUE

meaningful = Agent(
    "meaningful",
    ScriptedModel([say("done")]),
    memory=MemoryPolicy(embedder=HashingEmbedder(32)),
    queue=QUEUE,
)
