"""`celeriac up` and the commands that find it, as a user types them."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from celeriac.client import Client
from celeriac.errors import DatabaseUnavailable
from celeriac.stack.description import Description, read_description
from celeriac.states import RunStatus
from celeriac_storage.audit import Violation, audit
from celeriac_storage.database import Database
from tests.machine import assert_no_process_left, kill_everything, processes_of
from tests.servers import TestBroker
from tests.waiting import eventually

AGENTS = str(Path(__file__).with_name("agents.py"))
START_SECONDS = 120.0  # a few, on a machine that does nothing else
STOP_SECONDS = 40.0
AGAIN_SECONDS = 30.0  # a worker imports Celery and pydantic-ai first
DONE_SECONDS = 60.0
CELERIAC = [sys.executable, "-m", "celeriac.cli.main"]


def environment(data: Path, **given: str) -> dict[str, str]:
    """As in a new terminal: with no setting but the folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CELERIAC_")}
    return {**kept, "CELERIAC_DATA": str(data), **given}


def celeriac(data: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command that is not given any server."""
    return subprocess.run(
        [*CELERIAC, *arguments],
        env=environment(data),
        capture_output=True,
        text=True,
        timeout=DONE_SECONDS,
        check=False,
    )


class Up:
    """A running `celeriac up`."""

    def __init__(self, data: Path, *arguments: str, **given: str) -> None:
        self.data = data
        self.output = data.with_name(f"{data.name}.output")
        with self.output.open("w") as output:
            self.popen = subprocess.Popen(
                [*CELERIAC, "up", *arguments],
                env=environment(data, **given),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def description(self) -> Description:
        found = read_description(self.data)
        assert found is not None
        return found

    def pids(self) -> dict[str, int | None]:
        return {service.name: service.pid for service in self.description.services}

    def wait_until_ready(self) -> "Up":
        eventually(
            # Not its stack.json: that may still be the last one's, which was killed.
            lambda: self.popen.poll() is not None or "Ready" in self.output.read_text(),
            deadline_seconds=START_SECONDS,
            what="a stack that is ready",
        )
        assert self.popen.poll() is None, self.output.read_text()
        return self

    def wait(self) -> int:
        return self.popen.wait(STOP_SECONDS)


@contextmanager
def up(data: Path, *arguments: str, **given: str) -> Iterator[Up]:
    """`celeriac up`, ready, and stopped afterwards unless it has ended already."""
    started = Up(data, *arguments, **given)
    try:
        yield started.wait_until_ready()
    finally:
        if started.popen.poll() is None:
            started.popen.terminate()
            assert started.wait() == 0, started.output.read_text()


def complete_a_run(data: Path) -> None:
    done = celeriac(data, "run", "watchman", "--input", '"go"', "--wait", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"] == "all is well"


def violations(stack: Up) -> Sequence[Violation]:
    database = Database(stack.description.database_url, connections=1)
    try:
        return audit(database)
    finally:
        database.close()


def wait_for_new_pid(stack: Up, name: str, old: int | None) -> None:
    eventually(
        lambda: stack.pids()[name],
        until=lambda pid: pid not in (None, old),
        deadline_seconds=AGAIN_SECONDS,
        what=f"a new {name}",
    )


def test_up_runs_everything_and_commands_find_it_and_sigterm_ends_it(prepared: Path) -> None:
    with up(prepared, "--agents", AGENTS) as stack:
        written = json.loads((prepared / "stack.json").read_text())
        assert list(written) == ["database_url", "broker_url", "api_url", "flower_url", "services"]
        assert [(each["name"], list(each)) for each in written["services"]] == [
            (name, ["name", "pid", "address"])
            for name in (
                "postgres", "broker", "scheduler", "worker-1", "worker-2", "api", "flower"
            )
        ]  # fmt: skip
        assert (prepared / "stack.json").stat().st_mode & 0o077 == 0
        pids = [each["pid"] for each in written["services"]]
        assert [os.getpgid(pid) for pid in pids] == pids
        assert httpx2.get(f"{written['flower_url']}/healthcheck").status_code == 200
        token = (prepared / "api-token").read_text().strip()
        assert (prepared / "api-token").stat().st_mode & 0o077 == 0
        asked = httpx2.get(
            f"{written['api_url']}/v1/runs", headers={"Authorization": f"Bearer {token}"}
        )
        assert asked.json() == {"runs": [], "next_cursor": None}
        complete_a_run(prepared)
        refused = celeriac(prepared, "up")
        assert refused.returncode == 1
        assert f"already (pid {stack.popen.pid})" in refused.stderr

        stack.popen.send_signal(signal.SIGTERM)

        assert stack.wait() == 0
    assert_no_process_left(prepared)
    assert not (prepared / "stack.json").exists()
    lines = stack.output.read_text()
    assert lines.count(token) <= 1, "it is shown at its first start alone"
    assert not [log for log in (prepared / "logs").iterdir() if token in log.read_text()]
    for service in written["services"]:
        assert service["name"] in lines
        assert service["address"] is None or service["address"] in lines


def test_every_service_that_is_killed_is_started_again(prepared: Path) -> None:
    with up(prepared, "--agents", AGENTS, "--workers", "1") as stack:
        before = stack.pids()
        for pid in before.values():
            assert pid is not None
            os.killpg(pid, signal.SIGKILL)

        for name, pid in before.items():
            wait_for_new_pid(stack, name, pid)

        with Client(stack.description.database_url) as client:
            run_id = eventually(lambda: started(client), what="a run started after the recovery")
            assert run_id is not None
            assert client.wait(run_id, DONE_SECONDS).status is RunStatus.COMPLETED
        assert violations(stack) == []


def started(client: Client) -> str | None:
    """A new run, or None while PostgreSQL is still recovering."""
    try:
        return client.start("watchman", "go").run_id
    except DatabaseUnavailable:
        return None


def test_queued_runs_outlive_sigkill_of_everything(prepared: Path) -> None:
    # A pool of processes: its children are not the supervisor's.
    settings = {"CELERIAC_POOL": "prefork", "CELERIAC_SLOTS": "2", "CELERIAC_LEASE_SECONDS": "2"}
    with up(prepared, "--agents", AGENTS, **settings) as stack:
        for name in ("worker-1", "worker-2"):
            pid = stack.pids()[name]
            assert pid is not None
            os.killpg(pid, signal.SIGSTOP)
        with Client(stack.description.database_url, stack.description.broker_url) as client:
            runs = [client.start("watchman", "go").run_id for _ in range(3)]
        kill_everything(prepared)

    with up(prepared, "--agents", AGENTS, **settings) as stack:
        with Client(stack.description.database_url) as client:
            for run in runs:
                assert client.wait(run, DONE_SECONDS).status is RunStatus.COMPLETED
        assert violations(stack) == []


def test_json_is_printed_once_and_nothing_is_left_when_the_supervisor_is_killed(
    prepared: Path,
) -> None:
    with subprocess.Popen(
        [*CELERIAC, "up", "--json", "--agents", AGENTS, "--workers", "1"],
        env=environment(prepared, CELERIAC_POOL="prefork"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as popen:
        assert popen.stdout is not None
        printed = json.loads(popen.stdout.readline())
        assert printed == json.loads((prepared / "stack.json").read_text())
        assert len(processes_of(prepared)) > len(printed["services"])

        popen.kill()

        assert popen.communicate(timeout=STOP_SECONDS) == (b"", b"")
    assert_no_process_left(prepared)


def test_given_servers_are_used_and_a_worker_by_hand_joins_the_stack(
    data: Path, empty_database_url: str, leased_broker: TestBroker
) -> None:
    given = {
        "CELERIAC_DATABASE_URL": empty_database_url,
        "CELERIAC_BROKER_URL": leased_broker.url,
    }
    with up(data, **given) as stack:
        assert list(stack.pids()) == ["scheduler", "api", "flower"]
        assert stack.description.database_url == empty_database_url
        assert stack.description.broker_url == leased_broker.url
        assert "No agents were named, so no worker runs" in stack.output.read_text()

        worker = subprocess.Popen([*CELERIAC, "worker", "--agents", AGENTS], env=environment(data))

        try:
            eventually(
                lambda: celeriac(data, "workers", "--json").stdout,
                until=lambda lines: f'"pid": {worker.pid}' in lines,
                deadline_seconds=START_SECONDS,
            )
            complete_a_run(data)
        finally:
            worker.terminate()
            worker.wait(STOP_SECONDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--agents", "no_such_module"], "there is no module no_such_module"),
        (["--port", "{taken}"], "port {taken} of 127.0.0.1 is in use"),
    ],
)
def test_what_cannot_be_started_is_said_and_ends_the_rest(
    prepared: Path, arguments: list[str], said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        stack = Up(prepared, *(word.format(taken=taken) for word in arguments))

        assert stack.popen.wait(START_SECONDS) == 1

    assert said.format(taken=taken) in stack.output.read_text()
    assert_no_process_left(prepared)
    assert not (prepared / "stack.json").exists()


def test_a_signal_while_it_starts_ends_it(prepared: Path) -> None:
    stack = Up(prepared, "--agents", AGENTS)
    eventually(lambda: "postgres" in stack.output.read_text(), deadline_seconds=START_SECONDS)

    stack.popen.send_signal(signal.SIGINT)

    assert stack.wait() == 1
    assert_no_process_left(prepared)
