"""An agent that changes three files, each in its own way."""

from celeriac import Agent
from celeriac.scripted import ScriptedModel, call, say
from celeriac.workspace.tools import workspace_tools
from tests.crash.agents import QUEUE

BEFORE = {"edited.txt": "one\r\ntwo\r\n", "deleted.txt": "gone soon\n", "users.txt": "own"}
AFTER = {"made/new.txt": "new\n", "edited.txt": "one\r\n2\r\n", "users.txt": "own"}

editor = Agent(
    "editor",
    ScriptedModel(
        [
            call("write_file", path="made/new.txt", content="new\n"),
            call("edit_file", path="edited.txt", old="two", new="2"),
            call("delete_file", path="deleted.txt"),
            say("done"),
        ]
    ),
    tools=workspace_tools(folder_from="folder", tests=["sh", "-c", "echo run >> runs"]),
    queue=QUEUE,
)
"""Changes a file in steps 1, 3 and 5."""

runner = Agent(
    "runner",
    ScriptedModel(
        [call("run_command", command=["sh", "-c", "echo run >> runs"]), say("done")],
    ),
    tools=workspace_tools(folder_from="folder"),
    queue=QUEUE,
)
"""Runs a command in step 1."""

tester = Agent(
    "tester",
    ScriptedModel([call("run_tests"), say("done")]),
    tools=workspace_tools(folder_from="folder", tests=["sh", "-c", "echo run >> runs"]),
    queue=QUEUE,
)
"""Runs the tests in step 1."""
