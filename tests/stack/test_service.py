"""The state machine of one service, on real programs and a clock of the test's own."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from celeriac.stack.service import LONGEST_WAIT_SECONDS, Program, Service, State
from tests.waiting import eventually

STOP_SECONDS = 5.0
TICK_SECONDS = 0.05


class Clock:
    """A service, and the time that it is told."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.now = 0.0

    def tick_until(self, *states: State, deadline_seconds: float = 10.0) -> None:
        """Real time passes, which the service does not see."""

        def state() -> State:
            self.service.tick(self.now)
            return self.service.state

        eventually(state, until=lambda seen: seen in states, deadline_seconds=deadline_seconds)

    def wait_for_start(self) -> float:
        """Pass time until the service is started again, and return how long that was."""
        waited = 0.0
        while self.service.state is State.WAITING:
            self.now += TICK_SECONDS
            waited += TICK_SECONDS
            self.service.tick(self.now)
        return waited


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[Callable[[str], Clock]]:
    """A service that runs a line of shell."""
    made: list[Service] = []

    def clocked(script: str) -> Clock:
        service = Service(
            Program(
                name="test",
                command=["/bin/sh", "-c", script],
                environment={"PATH": "/usr/bin:/bin"},
                folder=tmp_path,
                log=tmp_path / "test.log",
                is_ready=lambda _: (tmp_path / "up").exists(),
                ready_seconds=60.0,
                is_held=(tmp_path / "held").exists,
                stop_seconds=STOP_SECONDS,
            )
        )
        made.append(service)
        service.start(0.0)
        return Clock(service)

    yield clocked
    for service in made:
        if service.kill() is not None:
            Clock(service).tick_until(State.WAITING, State.FAILED, State.DOWN)


def test_a_service_that_fails_at_its_first_start_is_not_tried_again(
    clocked: Callable[[str], Clock],
) -> None:
    clock = clocked("echo no such thing; exit 3")

    clock.tick_until(State.FAILED)

    assert clock.service.problem == "ended with exit code 3 while it started: no such thing"
    assert clock.service.line.pid is None


def test_a_service_that_is_not_ready_in_time_fails(clocked: Callable[[str], Clock]) -> None:
    clock = clocked("echo waiting; exec sleep 1000")
    clock.tick_until(State.STARTING)
    pid = clock.service.line.pid
    assert pid is not None

    clock.now = 61.0
    clock.tick_until(State.FAILED)

    assert "was not ready within 60 s" in str(clock.service.problem)
    assert not psutil.pid_exists(pid)


def test_the_time_of_a_service_that_is_held_up_is_not_counted(
    clocked: Callable[[str], Clock], tmp_path: Path
) -> None:
    (tmp_path / "held").touch()
    clock = clocked("exec sleep 1000")
    clock.tick_until(State.STARTING)

    clock.now = 3600.0  # a migration of large tables
    clock.service.tick(clock.now)
    (tmp_path / "held").unlink()
    clock.now += 59.0
    clock.service.tick(clock.now)

    assert clock.service.state is State.STARTING
    (tmp_path / "up").touch()
    clock.tick_until(State.READY)


def test_a_service_that_keeps_failing_is_started_less_and_less_often(
    clocked: Callable[[str], Clock], tmp_path: Path
) -> None:
    (tmp_path / "up").touch()
    clock = clocked("test -e up || exit 3; exec sleep 1000")
    clock.tick_until(State.READY)
    (tmp_path / "up").unlink()

    clock.service.kill()
    waits = []
    for _ in range(10):
        clock.tick_until(State.WAITING)
        waits.append(clock.wait_for_start())

    for wait, expected in zip(
        waits, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15], strict=True
    ):
        assert wait == pytest.approx(expected, abs=2 * TICK_SECONDS)
    assert LONGEST_WAIT_SECONDS == 15


def test_a_service_that_ran_well_is_started_at_once(
    clocked: Callable[[str], Clock], tmp_path: Path
) -> None:
    (tmp_path / "up").touch()
    clock = clocked("exec sleep 1000")
    for _ in range(3):
        clock.tick_until(State.READY)
        clock.now += 60.0
        pid = clock.service.line.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

        clock.tick_until(State.WAITING)

        assert clock.wait_for_start() == pytest.approx(0.1, abs=2 * TICK_SECONDS)
    assert clock.service.restarts == 3


def test_a_service_that_does_not_stop_is_killed_with_its_group(
    clocked: Callable[[str], Clock], tmp_path: Path
) -> None:
    (tmp_path / "up").touch()
    clock = clocked("trap '' TERM; sleep 1000 & wait; sleep 1000")
    clock.tick_until(State.READY)
    pid = clock.service.line.pid
    assert pid is not None
    group = eventually(
        lambda: [psutil.Process(pid), *psutil.Process(pid).children()],
        until=lambda found: len(found) == 2,
    )

    clock.service.stop(clock.now)
    clock.service.tick(clock.now + STOP_SECONDS)
    assert clock.service.state is State.STOPPING
    clock.now += STOP_SECONDS + 1
    clock.tick_until(State.DOWN)

    eventually(lambda: [each for each in group if each.is_running()], until=lambda left: not left)
