"""Commands that reach nothing but the HTTP API: from the start of a run to its end.

Each is a process of its own, whose environment names a database and a broker that are not there.
"""

# features: 003-09
import json
import re
import signal
from dataclasses import dataclass
from typing import Any

import pytest

from celeriac_storage.database import Database
from tests.acceptance.terminal import DONE_SECONDS, Terminal
from tests.crash import agents as crash_agents
from tests.crash import approval_agents
from tests.crash.servers import free_port
from tests.processes import Processes, TestProcess
from tests.waiting import eventually

START_SECONDS = 60.0
NOWHERE = {"database_url": "postgresql://127.0.0.1:1/none", "broker_url": "redis://127.0.0.1:1/0"}


class RefundTerminal(Terminal):
    agents = approval_agents.__name__


@dataclass
class Remote:
    """Somebody far away, who has an address and a token."""

    terminal: Terminal
    url: str
    token: str

    def start(self, *command: str) -> TestProcess:
        return self.terminal.processes.start(
            command, settings={"url": self.url, "token": self.token, **NOWHERE}
        )

    def tell(self, *command: str, exit_code: int = 0) -> Any:
        """What the command prints as JSON, of its last line."""
        ran = self.start(*command, "--json")
        assert ran.wait(START_SECONDS) == exit_code, ran.output
        return json.loads(lines(ran)[-1])


def lines(process: TestProcess) -> list[str]:
    return [line for line in process.output.splitlines() if line.startswith("{")]


def seqs(process: TestProcess) -> list[int]:
    """Of the events that it has printed as a whole."""
    return [json.loads(line)["seq"] for line in lines(process) if line.endswith("}")]


@pytest.fixture
def terminal(database: Database, processes: Processes) -> Terminal:
    terminal = RefundTerminal(database, processes)
    terminal.execute(crash_agents.CREATE_TABLES)
    return terminal


def start_api(terminal: Terminal, port: int) -> TestProcess:
    api = terminal.processes.start(["api", "--port", str(port)])
    eventually(
        lambda: re.search("the API is at", api.output),
        deadline_seconds=START_SECONDS,
        what="the API listens",
    )
    return api


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("decision", "refunded"),
    [
        (["approve"], 1),
        (["edit", "--arguments", '{"label": "less"}'], 1),
        (["reject", "--reason", "the order is too old"], 0),
    ],
    ids=["approve", "edit", "reject"],
)
def test_a_run_from_its_start_to_its_end_though_client_and_api_are_killed(
    terminal: Terminal, decision: list[str], refunded: int
) -> None:
    terminal.open(workers=1)
    port = free_port()
    api = start_api(terminal, port)
    url = f"http://127.0.0.1:{port}"
    alice, bob = (
        Remote(terminal, url, terminal.celeriac("token", "create", "--user", name)["token"])
        for name in ("alice", "bob")
    )

    run_id = alice.tell("run", "refunds", "--input", '"go"')["run_id"]
    reader = alice.start("events", run_id, "--follow", "--json")
    eventually(
        lambda: "approval.requested" in reader.output,
        deadline_seconds=DONE_SECONDS,
        what="the reader is told that a person is asked",
    )
    reader.kill_group()
    read = seqs(reader)
    api.kill_group()
    start_api(terminal, port)

    proposal = bob.tell("approvals", "--run", run_id)
    verb, *words = decision
    bob.tell(verb, proposal["approval_id"], *words)
    rest = alice.start("events", run_id, "--follow", "--after", str(read[-1]), "--json")
    ended = alice.tell("wait", run_id, "--timeout", "60")

    assert rest.wait(START_SECONDS) == 0
    table = terminal.query("SELECT seq FROM celeriac.events WHERE run_id = %s ORDER BY seq", run_id)
    assert [*read, *seqs(rest)] == [seq for (seq,) in table]
    assert (ended["status"], ended["user_id"]) == ("completed", "alice")
    assert ended == terminal.show(run_id)
    calls = terminal.query("SELECT tool FROM crash.calls WHERE run_id = %s", run_id)
    assert calls == [("refund",)] * refunded
    terminal.assert_sound()


def test_every_command_of_people_goes_over_http(terminal: Terminal) -> None:
    terminal.open(workers=1)
    port = free_port()
    start_api(terminal, port)
    made = terminal.celeriac("token", "create", "--user", "ada", "--role", "admin")
    ada = Remote(terminal, f"http://127.0.0.1:{port}", made["token"])

    run_id = ada.tell("run", "refunds", "--input", '"go"', "--run-id", "mine")["run_id"]
    terminal.shown(run_id, phase="waiting_approval")

    assert ada.tell("runs", "--agent", "refunds")["run_id"] == "mine"
    assert ada.tell("show", "mine")["phase"] == "waiting_approval"
    assert ada.tell("say", "mine", "hurry", "--key", "k")["status"] == "paused"
    assert ada.tell("principals", "carl", "--role", "cashier")["roles"] == ["cashier"]
    assert ada.tell("interrupt", "mine")["status"] == "paused"
    assert ada.tell("cancel", "mine")["status"] == "cancelled"
    assert ada.tell("wait", "mine", exit_code=1)["status"] == "cancelled"
    assert ada.tell("rollback", "mine")["run_id"] != "mine"
    for refused in (
        ["retry", "mine"],
        ["resolve", "mine", "0.0", "--not-done"],
        ["submit", "mine", "0.0", "--result", "1"],
        ["show", "nope"],
        ["cancel", "mine", "--as", "bob"],
        ["workers"],
    ):
        assert ada.start(*refused).wait(START_SECONDS) == 1, refused
    shown = ada.start("show", "mine")
    assert shown.wait(START_SECONDS) == 0
    assert "cancelled" in shown.output
    audit = ada.start("audit", "--url", ada.url)
    assert audit.wait(START_SECONDS) == 2
    assert "works on the database itself" in audit.output
    stranger = Remote(terminal, ada.url, "cel_" + "x" * 43).start("runs")
    assert stranger.wait(START_SECONDS) == 1
    assert "this token opens nothing" in stranger.output
    assert ada.tell("token", "revoke", made["token_id"])["revoked_at"] is not None
    assert ada.start("runs").wait(START_SECONDS) == 1
    assert all(ada.token not in process.output for process in terminal.processes.started)


def test_a_follower_that_is_told_to_stop_ends(terminal: Terminal) -> None:
    terminal.open(workers=1)
    port = free_port()
    start_api(terminal, port)
    token = terminal.celeriac("token", "create", "--user", "alice")["token"]
    alice = Remote(terminal, f"http://127.0.0.1:{port}", token)
    run_id = alice.tell("run", "refunds", "--input", '"go"')["run_id"]
    waiting = alice.start("wait", run_id)
    eventually(
        lambda: "waits for a person to decide" in waiting.output,
        deadline_seconds=DONE_SECONDS,
        what="it is told what the run waits for",
    )

    waiting.send(signal.SIGINT)

    assert waiting.wait(START_SECONDS) == 130
    assert f"run {run_id} goes on" in waiting.output
