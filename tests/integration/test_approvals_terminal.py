"""`celeriac approve` on a terminal: it shows the proposal, asks the questions, and once more."""

# features: 004-47, 004-59
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from select import select
from time import monotonic

import pytest

from celeriac import Approval
from celeriac.ids import ApprovalId
from celeriac_storage.database import Database
from tests.processes import ROOT
from tests.review_desk import REFUND, Desk, Ledger, refund_tool

QUESTIONS = ["Did you call the customer?", "Is the order paid?"]
DEADLINE_SECONDS = 60.0


class Terminal:
    """`celeriac approve` with a terminal around it, and somebody who reads and types."""

    def __init__(self, desk: Desk, approval_id: ApprovalId, folder: Path) -> None:
        self._ours, theirs = pty.openpty()
        self.screen = ""
        settings = {
            "CELERIAC_DATABASE_URL": desk.database.url,
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "120",
            "TERM": "dumb",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celeriac.cli.main", "approve", approval_id, "--as", "alice"],
            env={**os.environ, **settings},
            cwd=folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, text: str) -> str:
        """What came on the screen since it was read last, up to this text."""
        give_up_at = monotonic() + DEADLINE_SECONDS
        while text not in self.screen:
            assert monotonic() < give_up_at, f"no {text!r} on the screen: {self.screen!r}"
            if select([self._ours], [], [], 0.1)[0]:
                self.screen += os.read(self._ours, 4096).decode()
        before, _, self.screen = self.screen.partition(text)
        return before

    def type(self, line: str) -> None:
        os.write(self._ours, f"{line}\n".encode())

    def exit_code(self) -> int:
        return self._process.wait(DEADLINE_SECONDS)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)


@pytest.fixture
def desk(database: Database, broker_url: str) -> Iterator[Desk]:
    ledger = Ledger()
    tools = [refund_tool(ledger, Approval(checklist=QUESTIONS))]
    desk = Desk(database, broker_url, ledger, tools, [("refund", REFUND)])
    yield desk
    desk.close()


@pytest.fixture
def approve(desk: Desk, tmp_path: Path) -> Iterator[Callable[[ApprovalId], Terminal]]:
    terminals: list[Terminal] = []

    def open_terminal(approval_id: ApprovalId) -> Terminal:
        terminals.append(Terminal(desk, approval_id, tmp_path))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.close()


def test_whoever_says_yes_has_seen_it_and_answered_each_question(
    desk: Desk, approve: Callable[[ApprovalId], Terminal]
) -> None:
    run_id, (proposal,) = desk.propose()

    terminal = approve(proposal.approval_id)
    shown = terminal.read_until(f"{QUESTIONS[0]}: ")
    terminal.type("yes, at noon")
    terminal.read_until(f"{QUESTIONS[1]}: ")
    terminal.type("yes")
    terminal.read_until("Approve it? [y/N]: ")
    assert desk.client.approval(proposal.approval_id, by="viewer").status == "pending"
    terminal.type("y")
    terminal.read_until("is approved")

    assert terminal.exit_code() == 0
    for fact in (proposal.arguments_hash, proposal.blast_radius, "80.00", proposal.approval_id):
        assert fact in shown, "before the first question"
    (decision,) = desk.rows("SELECT reviewer, answers FROM celeriac.approval_decisions")
    assert tuple(decision) == ("alice", dict(zip(QUESTIONS, ["yes, at noon", "yes"], strict=True)))
    assert desk.go_on(run_id).status == "completed"
    assert desk.ledger.amounts() == ["80.00"]


def test_whoever_says_no_has_decided_nothing(
    desk: Desk, approve: Callable[[ApprovalId], Terminal]
) -> None:
    _, (proposal,) = desk.propose()

    terminal = approve(proposal.approval_id)
    for question in QUESTIONS:
        terminal.read_until(f"{question}: ")
        terminal.type("yes")
    terminal.read_until("Approve it? [y/N]: ")
    terminal.type("")
    terminal.read_until("Aborted")

    assert terminal.exit_code() == 1
    assert desk.client.approval(proposal.approval_id, by="viewer").status == "pending"
    assert desk.rows("SELECT FROM celeriac.approval_decisions") == []
    assert ("alice", "approval.shown", "allowed") in desk.trail(proposal.approval_id)
