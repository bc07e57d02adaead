"""Fixtures: a folder in which the demo is run, and what the demo has left of it.

folder   an empty folder that any account may enter, and the place for temporary files
start    starts `celeriac demo` there, with a shell's settings that it must not heed
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.machine import kill_everything

Start = Callable[..., "subprocess.Popen[str]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.processes)


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not pytest's own: root's is closed to the account that runs the servers.
    folder = Path(tempfile.mkdtemp(prefix="celeriac-test-")).resolve()
    folder.chmod(0o755)
    yield folder
    kill_everything(folder)
    shutil.rmtree(folder)


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    with ExitStack() as ending:

        def start(*arguments: str) -> "subprocess.Popen[str]":
            demo = ending.enter_context(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", "celeriac.cli.main", "demo", *arguments],
                    cwd=folder,
                    env={
                        **os.environ,
                        "TMPDIR": str(folder),
                        "CELERIAC_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nowhere",
                        "CELERIAC_QUEUES": "elsewhere",
                        "ORDER_DESK_MODEL": "openai:gpt-5",
                    },
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            ending.callback(demo.kill)
            return demo

        yield start
