"""Worker and scheduler processes for a measurement, ended with it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from celeriac.errors import CeleriacError
from celeriac_storage import measuring
from celeriac_storage.database import Database

START_SECONDS = 60.0
STOP_SECONDS = 15.0
AGENTS = str(Path(__file__).with_name("agents.py"))


class Processes:
    """Starts processes in process groups of their own; leaving the block ends them all."""

    def __init__(self, database: Database, environment: Mapping[str, str]) -> None:
        self._database = database
        self._environment = {**os.environ, "CELERIAC_AGENTS": AGENTS, **environment}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start_scheduler(self) -> "subprocess.Popen[bytes]":
        return self.start("-m", "celeriac.cli.main", "scheduler")

    def start_worker(self) -> "subprocess.Popen[bytes]":
        """A worker, not waited for; its row has its pid."""
        return self.start("-m", "celeriac.cli.main", "worker")

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [sys.executable, *arguments],
            env=self._environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self._stack.callback(_end, process)
        return process

    def wait_for_workers(self, *processes: "subprocess.Popen[bytes]") -> None:
        """Wait until each process has registered as a worker."""
        pids = [process.pid for process in processes]

        def are_registered() -> bool:
            with self._database.connect() as connection:
                found = measuring.count_live_workers(connection, pids)
            for process in processes:
                if process.poll() is not None:
                    raise CeleriacError(
                        f"worker process {process.pid} ended with {process.returncode} before it "
                        "was ready; what it said is above"
                    )
            return found == len(pids)

        wait_until(are_registered, START_SECONDS, f"workers {pids} to register")


def wait_until(fact: Callable[[], bool], seconds: float, what: str, every: float = 0.02) -> None:
    """Wait for a fact. Raises `CeleriacError` after so many seconds."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            raise CeleriacError(f"waited {seconds:g} s for {what}, in vain")
        time.sleep(every)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
