"""Servers and workers that are killed in the middle of a call."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from celeriac.client import Client
from celeriac.mcp import pin
from celeriac.reports import Run
from celeriac.states import EffectState, RunStatus
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from celeriac_storage.resolving import TookEffect
from tests.mcp_servers.ledger import BOX_OFFICE, Ledger
from tests.processes import Processes, TestProcess
from tests.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.crash]

DONE_SECONDS = 60.0


class Office:
    """A worker, the server that it starts, and what that server did."""

    def __init__(
        self, database: Database, processes: Processes, ledger: Ledger, folder: Path
    ) -> None:
        pin(ledger.over_pipes(), folder / "box.json")
        self.database = database
        self.ledger = ledger
        self.client = Client(database.url)
        self._processes = processes
        processes.environment["BOX_FOLDER"] = str(folder)
        processes.start_scheduler()
        self.worker = self.start_worker()

    def start_worker(self) -> TestProcess:
        return self._processes.start_worker("tests.mcp_servers.agents")

    def start(self, agent: str, until: str) -> str:
        """Start a run, and return when its call has written this line."""
        run_id = self.client.start(agent, "go").run_id
        eventually(
            lambda: until in self.ledger.lines, deadline_seconds=DONE_SECONDS, what=f"{until!r}"
        )
        return run_id

    def servers(self, worker: TestProcess) -> list[psutil.Process]:
        children = psutil.Process(worker.pid).children(recursive=True)
        return [child for child in children if BOX_OFFICE in child.cmdline()]

    def kill_server(self) -> None:
        (server,) = self.servers(self.worker)
        server.send_signal(signal.SIGKILL)

    def wait(self, run_id: str) -> Run:
        return self.client.wait(run_id, timeout_seconds=DONE_SECONDS)

    def states(self, run: Run) -> list[EffectState]:
        return [EffectState(effect.state) for effect in run.effects]


@pytest.fixture
def office(
    database: Database, processes: Processes, ledger: Ledger, tmp_path: Path
) -> Iterator[Office]:
    office = Office(database, processes, ledger, tmp_path)
    yield office
    office.client.close()


def test_a_run_calls_tools_of_one_server_over_one_connection(office: Office) -> None:
    run = office.wait(office.start("clerk", "seats Hamlet"))

    assert run.status is RunStatus.COMPLETED
    assert office.ledger.lines == ["book Hamlet 2", "seats Hamlet"]
    assert office.states(run) == [EffectState.COMMITTED] * 2
    assert len(office.servers(office.worker)) == 1
    assert audit(office.database) == []


def test_a_call_whose_server_is_killed_is_for_a_person(office: Office) -> None:
    run_id = office.start("printer", "print_ticket begun")

    office.kill_server()

    run = office.wait(run_id)
    assert (run.status, office.states(run)) == (RunStatus.NEEDS_ATTENTION, [EffectState.UNKNOWN])
    assert "MCP server box: it has ended" in str(run.error)
    office.client.resolve(run_id, "0.0", TookEffect("printed"))
    assert office.wait(run_id).status is RunStatus.COMPLETED
    # The next call starts the server again.
    assert office.wait(office.start("clerk", "seats Hamlet")).status is RunStatus.COMPLETED
    assert office.ledger.lines == ["print_ticket begun", "book Hamlet 2", "seats Hamlet"]


def test_an_idempotent_call_whose_server_is_killed_is_made_again(office: Office) -> None:
    run_id = office.start("pricer", "set_price begun")

    office.kill_server()
    eventually(
        lambda: office.ledger.lines,
        until=lambda lines: len(lines) == 2,
        deadline_seconds=DONE_SECONDS,
        what="the second call",
    )
    office.ledger.open("paper")

    run = office.wait(run_id)
    assert (run.status, office.states(run)) == (RunStatus.COMPLETED, [EffectState.COMMITTED])
    assert office.ledger.lines == ["set_price begun", "set_price begun", "set_price done"]


def test_a_call_whose_worker_is_killed_is_for_a_person_and_its_server_ends(office: Office) -> None:
    run_id = office.start("printer", "print_ticket begun")
    (server,) = office.servers(office.worker)

    office.worker.kill_group()
    office.start_worker()
    office.ledger.open("paper")

    run = office.wait(run_id)
    assert (run.status, office.states(run)) == (RunStatus.NEEDS_ATTENTION, [EffectState.UNKNOWN])
    assert office.ledger.lines.count("print_ticket begun") == 1
    eventually(
        lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE,
        deadline_seconds=DONE_SECONDS,
        what="the server's end",
    )
