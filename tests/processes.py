"""Real worker and scheduler processes, for tests that kill, freeze and restart them.

Each is the leader of a process group of its own, as under a supervisor. It counts as ready when the
database says so.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from celeriac.settings import Settings
from celeriac_storage.database import Database
from tests.servers import TestBroker
from tests.waiting import eventually

START_SECONDS = 60.0
"""A worker imports Celery and pydantic-ai first, on a machine where others test as well."""

ROOT = Path(__file__).parent.parent


class Child(Protocol):
    """What is used of `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: signal.Signals, /) -> None: ...


class Nursery(Protocol):
    """Starts `celeriac COMMAND` as `subprocess.Popen` would (`tests.crash.nursery`)."""

    def fork(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path
    ) -> Child: ...


class TestProcess:
    """One started command and the process group that it leads."""

    __test__ = False  # not a test, whatever its name begins with

    def __init__(self, name: str, popen: Child, output_path: Path) -> None:
        self.name = name
        self.pid = popen.pid
        self.output_path = output_path
        self._popen = popen

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    @property
    def pids(self) -> list[int]:
        """The process and its descendants, such as the children of a prefork pool."""
        try:
            process = psutil.Process(self.pid)
            return [self.pid, *(child.pid for child in process.children(recursive=True))]
        except psutil.NoSuchProcess:
            return []

    @property
    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Signal the process alone, as a supervisor's stop does."""
        self._popen.send_signal(number)

    def kill_group(self) -> None:
        """SIGKILL to the whole group; returns when the leader is gone."""
        self._signal_group(signal.SIGKILL)
        self.wait()

    def freeze(self) -> None:
        """SIGSTOP to the whole group: alive for the kernel, silent for everybody else."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_group(signal.SIGCONT)

    def wait(self, deadline_seconds: float = 30.0) -> int:
        """Wait for the end of the process and return its exit code; fails after the deadline."""
        try:
            return self._popen.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} (pid {self.pid}) has not ended within {deadline_seconds:g} s"
            ) from None

    def _signal_group(self, number: signal.Signals) -> None:
        # The leader's pid is reused only after we have waited for it.
        if self.is_running:
            os.killpg(self.pid, number)

    def _clean_up(self, others: Sequence[int]) -> None:
        """End whatever is left, leader first, children by pid: they may outlive a killed leader."""
        self._signal_group(signal.SIGKILL)
        self._popen.wait(10)
        for pid in others:
            try:
                if os.getpgid(pid) == self.pid:
                    os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Processes:
    """Starts processes on a test's own database and broker, and ends them all at `close`.

    Settings are given as `lease_seconds=2`, which becomes `CELERIAC_LEASE_SECONDS=2`.
    `test_points` arms kill points as in `celeriac.testpoints`, such as `step.before_commit@2=kill`;
    each acts once until `rearm`, so the worker that takes over is spared.
    """

    def __init__(
        self,
        database: Database,
        broker: TestBroker,
        folder: Path,
        nursery: Nursery | None = None,
    ) -> None:
        self.started: list[TestProcess] = []
        self._nursery = nursery
        self._database = database
        self._folder = folder
        self._points = folder / "test-points-reached"
        self._points.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not _is_setting(name)},
            # A test's agents are imported by name, like a user's.
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "CELERIAC_DATABASE_URL": database.url,
            "CELERIAC_BROKER_URL": broker.url,
            "CELERIAC_QUEUES": broker.queue,
            "CELERIAC_TEST_POINTS_DIR": str(self._points),
        }

    def start_worker(
        self, agents: str, *, test_points: str = "", **settings: object
    ) -> TestProcess:
        """Start a worker with the agents of module `agents` (`tests.crash.agents`); returns when it
        is registered: with prefork, when all its children are."""
        (process,) = self.start_workers(1, agents, test_points=test_points, **settings)
        return process

    def start_workers(
        self, count: int, agents: str, *, test_points: str = "", **settings: object
    ) -> list[TestProcess]:
        """Start so many workers at once, each as `start_worker` does."""
        started = [
            self.start(["worker"], test_points=test_points, settings={"agents": agents, **settings})
            for _ in range(count)
        ]
        expected = _executing_processes(settings)
        for process in started:
            self._until_ready(
                process,
                lambda: all(len(self.worker_ids(each)) == expected for each in started),
            )
        return started

    def start_scheduler(self, *, test_points: str = "", **settings: object) -> TestProcess:
        """Start a scheduler; returns when it is connected and some scheduler leads."""
        before = self._schedulers_connected()
        process = self.start(["scheduler"], test_points=test_points, settings=settings)
        self._until_ready(
            process, lambda: self._schedulers_connected() > before and self._has_leader()
        )
        return process

    def start(
        self,
        command: Sequence[str],
        *,
        test_points: str = "",
        settings: Mapping[str, object] | None = None,
    ) -> TestProcess:
        """Start `celeriac COMMAND` without waiting for anything."""
        name = f"{command[0]}-{len(self.started) + 1}"
        output_path = self._folder / f"{name}.log"
        environment = self.environment | {
            f"CELERIAC_{key.upper()}": str(value) for key, value in (settings or {}).items()
        }
        if test_points:
            environment["CELERIAC_TEST_POINTS"] = test_points
        if self._nursery is not None:
            child = self._nursery.fork(command, environment, self._folder, output_path)
        else:
            child = self._popen(command, environment, output_path)
        process = TestProcess(name, child, output_path)
        self.started.append(process)
        return process

    def _popen(
        self, command: Sequence[str], environment: Mapping[str, str], output_path: Path
    ) -> Child:
        with output_path.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "celeriac.cli.main", *command],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def worker_ids(self, process: TestProcess) -> list[str]:
        """The workers that live in the process and its children, as the database knows them."""
        with self._database.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT worker_id FROM celeriac.workers WHERE pid = ANY (%s)"
                " AND dead_at IS NULL AND stopped_at IS NULL ORDER BY started_at",
                (process.pids,),
            )
            return [row[0] for row in rows]

    def reached(self, point: str) -> bool:
        """Whether the armed test point (`NAME`, or `NAME@STEP`) has acted."""
        name, _, step = point.partition("@")
        return (self._points / f"{name}@{step or -1}").exists()

    def held(self, point: str) -> int:
        """How often a thread came to the point (`NAME@STEP`) that is armed with `hold`."""
        return len(list(self._points.glob(f"{point}.*")))

    def rearm(self) -> None:
        """Forget which test points have acted, for another case on the same processes' servers."""
        for reached in self._points.iterdir():
            reached.unlink()

    def close(self) -> None:
        """End everything that was started, frozen or not."""
        groups = [(process, process.pids) for process in self.started]
        for process, pids in groups:
            process._clean_up(pids)

    def _until_ready(self, process: TestProcess, is_ready: Callable[[], bool]) -> None:
        eventually(
            lambda: not process.is_running or is_ready(),
            deadline_seconds=START_SECONDS,
            what=f"{process.name} ready",
        )
        if not process.is_running:
            pytest.fail(f"{process.name} ended before it was ready:\n{process.output}")

    def _schedulers_connected(self) -> int:
        with self._database.connect() as connection:
            count = connection.exec_driver_sql(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = 'celeriac-scheduler'"
            ).scalar_one()
            return int(count)

    def _has_leader(self) -> bool:
        with self._database.connect() as connection:
            found = connection.exec_driver_sql(
                "SELECT FROM celeriac.leaders WHERE held_until > clock_timestamp()"
            ).fetchone()
            return found is not None


def _executing_processes(settings: Mapping[str, object]) -> int:
    """How many workers a worker command registers: with prefork one for each child."""
    if settings.get("pool") != "prefork":
        return 1
    slots = settings.get("slots", Settings.model_fields["slots"].default)
    return min(int(str(slots)), 2 * (os.cpu_count() or 1))


def _is_setting(name: str) -> bool:
    return name.startswith("CELERIAC_")
