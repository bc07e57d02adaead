"""Services are started before the servers that they need, and held up until those are there."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.cli import service
from celeriac.cli.service import CODE
from celeriac.stack.gate import Gate
from celeriac.stack.service import Program
from celeriac.stack.supervisor import Supervisor
from tests.waiting import eventually

HELD = """
import pathlib, sys
pathlib.Path("began").touch()
sys.stdin.read()
pathlib.Path("went on").touch()
"""


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.close()


def test_a_service_waits_at_the_gate_and_one_that_comes_later_goes_through(
    gate: Gate, tmp_path: Path
) -> None:
    def program(name: str, held_by: int = gate.input) -> Program:
        (tmp_path / name).mkdir()
        return Program(
            name=name,
            command=[sys.executable, "-c", f"{HELD}\nimport time; time.sleep(1000)"],
            environment={},
            folder=tmp_path / name,
            log=tmp_path / f"{name}.log",
            input=held_by,
            is_ready=lambda _: (tmp_path / name / "went on").exists(),
            ready_seconds=600.0,
        )

    supervisor = Supervisor()
    try:
        supervisor.launch([program("early")])
        eventually((tmp_path / "early" / "began").exists, until=bool)
        supervisor.start([program("free", subprocess.DEVNULL)])  # began later, and has gone on
        assert not (tmp_path / "early" / "went on").exists()

        gate.open()

        supervisor.wait(["early"])
        supervisor.start([program("late")])
    finally:
        supervisor.stop(["early", "free", "late"])
        supervisor.close()


@pytest.mark.parametrize("command", CODE)
def test_a_service_loads_its_code_before_it_waits_and_does_nothing_else(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    class Input:
        def read(self) -> None:
            done.append("waited")

    monkeypatch.setattr(service, "import_module", done.append)
    monkeypatch.setattr("sys.stdin", Input())
    monkeypatch.setattr(service, "app", lambda: done.append("ran"))

    service.main(command)

    assert done == [CODE[command], "waited", "ran"]


def test_every_service_is_known_with_its_code() -> None:
    assert {
        command.callback.__name__ for command in service.app.registered_commands if command.callback
    } == set(CODE)
