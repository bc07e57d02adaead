"""`celeriac demo` as a user runs it: right in every row, and gone without a trace."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.demo.conftest import Start
from tests.machine import assert_no_process_left, processes_of

pytestmark = pytest.mark.timeout(400)


def read_until(process: "subprocess.Popen[str]", text: str) -> None:
    """Read what it tells, up to a line with this text."""
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if text in line:
            return
    pytest.fail(f"it ended with {process.wait()} and never told {text!r}:\n{''.join(told)}")


def test_the_demo_is_right_in_every_row_and_leaves_nothing(start: Start, folder: Path) -> None:
    demo = start("--json")
    output, told = demo.communicate()

    assert demo.returncode == 0, told
    verdict = json.loads(output)
    assert verdict["ok"] is True
    assert len(verdict["findings"]) >= 13
    assert all(finding["is_right"] for finding in verdict["findings"])
    assert [failover["step"] for failover in verdict["failovers"]] == [3, 4]
    assert all(failover["taken_by"] for failover in verdict["failovers"])
    assert "took step 4 over" in told
    assert_no_process_left(folder)
    assert list(folder.iterdir()) == []


def test_kept_it_stays_open_until_ctrl_c(start: Start, folder: Path) -> None:
    demo = start("--keep", "--json")
    assert demo.stdout is not None
    verdict: Any = json.loads(demo.stdout.readline())
    data = folder / ".celeriac-demo"
    stack = json.loads((data / "stack.json").read_text())

    killed = verdict["failovers"][0]["run_id"]
    shown = subprocess.run(
        [sys.executable, "-m", "celeriac.cli.main", "--data", str(data), "show", killed, "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(shown.stdout)["deaths"] == 1
    assert httpx2.get(stack["flower_url"]).status_code == 200

    demo.send_signal(signal.SIGINT)
    _, told = demo.communicate()

    assert demo.returncode == 0
    assert f"rm {data}/shop/points/" in told
    assert_no_process_left(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "postgres   ready"),
        (signal.SIGINT, "holds step 3"),
    ],
)
def test_a_signal_in_the_middle_ends_everything_and_leaves_nothing(
    start: Start, folder: Path, number: signal.Signals, moment: str
) -> None:
    demo = start("--json")
    read_until(demo, moment)

    demo.send_signal(number)
    output, told = demo.communicate()

    assert demo.returncode == 1
    assert output == ""
    assert "stop" in told
    assert_no_process_left(folder)
    assert list(folder.iterdir()) == []


def test_no_process_outlives_a_demo_that_is_killed(start: Start, folder: Path) -> None:
    demo = start("--json")
    read_until(demo, "An order, undisturbed")
    assert len(processes_of(folder)) > 5

    demo.kill()
    demo.communicate()

    assert_no_process_left(folder)


def test_a_folder_with_something_in_it_is_left_alone(start: Start, folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    (data / "mine").write_text("mine")

    demo = start("--data", str(data))
    _, told = demo.communicate()

    assert demo.returncode == 1
    assert "needs a new folder" in told
    assert [(each.name, each.read_text()) for each in data.iterdir()] == [("mine", "mine")]


@pytest.mark.parametrize("option", ["--database-url", "--broker-url"])
def test_it_takes_nobodys_servers(start: Start, option: str) -> None:
    demo = start(option, "redis://127.0.0.1:1/0")
    _, told = demo.communicate()

    assert demo.returncode == 2
    assert "brings its own" in told
