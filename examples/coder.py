"""The coder: it repairs a small project, and may not say that it is done before the tests agree.

    python examples/coder.py prepare /tmp/coder/till
    CELERIAC_WORKSPACE_ROOTS=/tmp/coder celeriac up --agents examples/coder.py
    celeriac run coder --input '{"folder": "/tmp/coder/till", "task": "Repair it."}' --wait

A script plays the model, offline: it reads, runs the tests, edits, says too early that it is done,
is told so, runs the tests again, and ends. CODER_MODEL=openai:gpt-5 puts a real model in its place.
"""

import os
import subprocess
import sys
from pathlib import Path

from pydantic import BaseModel, Field

from celeriac import Agent, Contract
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
from celeriac.workspace.tools import workspace_tools

TEST_MODULE = "test_till"
TESTS = [sys.executable, "-B", "-m", "unittest", TEST_MODULE]

PROJECT = {
    "till.py": '''\
"""What a till has to work out."""


def split(cents: int, people: int) -> list[int]:
    """Split a bill so that the shares add up to it and differ by a cent at most."""
    return [cents // people for _ in range(people)]
''',
    f"{TEST_MODULE}.py": """\
import unittest

from till import split


class TestSplit(unittest.TestCase):
    def test_no_cent_is_lost(self) -> None:
        for cents in range(200):
            self.assertEqual(sum(split(cents, 3)), cents)

    def test_nobody_pays_a_cent_more_than_needed(self) -> None:
        self.assertEqual(split(100, 3), [34, 33, 33])

    def test_a_bill_of_nothing(self) -> None:
        self.assertEqual(split(0, 2), [0, 0])
""",
}
"""A project with a mistake: it loses cents."""


class Task(BaseModel):
    """A run's input. The folder must lie in one of CELERIAC_WORKSPACE_ROOTS."""

    folder: str
    task: str = Field(min_length=1)


SCRIPT = [
    Turn(
        "I look at the project.",
        (ToolCall("list_files", {}), ToolCall("read_file", {"path": "till.py"})),
    ),
    call("run_tests"),
    call(
        "edit_file",
        path="till.py",
        old="    return [cents // people for _ in range(people)]\n",
        new=(
            "    share, left = divmod(cents, people)\n"
            "    return [share + (number < left) for number in range(people)]\n"
        ),
    ),
    say("I have repaired split(); the tests should pass now."),  # should: it has not looked
    call("run_tests"),
    say("split() lost the cents that do not divide. It hands them out now, and all tests pass."),
]

coder = Agent(
    "coder",
    model=os.environ.get("CODER_MODEL") or ScriptedModel(SCRIPT, "coder-script"),
    instructions="""\
You repair the Python project in your workspace. Read it, run the tests, and change what is wrong in
its code, never in its tests. When the tests pass, say in one sentence what was wrong.""",
    tools=workspace_tools(folder_from="folder", tests=TESTS, commands=False),
    input=Task,
    contract=Contract(paths_changed=["till.py"], require_focused_verification=[TEST_MODULE]),
    description="Repairs a small project, and is not done before its tests pass.",
)


def prepare(folder: Path) -> None:
    """Make the project, as a git repository with one commit. The folder must not be there yet."""
    folder.mkdir(parents=True)
    for name, content in PROJECT.items():
        (folder / name).write_text(content)
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        [
            "-c", "user.name=Till", "-c", "user.email=till@example.com", "-c",
            "commit.gpgsign=false", "commit", "--quiet", "--message", "A till that loses cents",
        ],
    ):  # fmt: skip
        subprocess.run(["git", "-C", str(folder), *command], check=True)  # noqa: S603, S607


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "prepare":
        sys.exit("usage: python examples/coder.py prepare FOLDER")
    prepare(Path(sys.argv[2]).absolute())
