"""Agents that change files, each in its own way."""

from celeriac import Agent, Contract, external_tool
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
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

careful = Agent(
    "careful",
    ScriptedModel(
        [
            call("write_file", path="made/new.txt", content="new\n"),
            say("done"),
            call("run_tests"),
            say("done now"),
        ]
    ),
    tools=workspace_tools(folder_from="folder", tests=["sh", "-c", "echo 3 passed"]),
    contract=Contract(
        paths_changed=["made/*"], require_focused_verification=True, max_corrections=1
    ),
    queue=QUEUE,
)
"""Changes a file in step 1, is not believed in step 2, runs the tests in step 4, and ends in 5."""


@external_tool(mutates_workspace=True)
def patch(path: str) -> str:
    """Have another process change a file."""
    return path


@external_tool
def scan(shelf: str) -> str:
    """Have somebody scan a shelf."""
    return shelf


remote = Agent(
    "remote",
    ScriptedModel(
        [
            Turn(calls=(ToolCall("scan", {"shelf": "a"}), ToolCall("patch", {"path": "a.txt"}))),
            say("done"),
        ]
    ),
    tools=[scan, patch],
    contract=Contract(require_workspace_mutation=True, max_corrections=0),
    queue=QUEUE,
)
"""Has two calls executed elsewhere, of which the second changes a file."""
