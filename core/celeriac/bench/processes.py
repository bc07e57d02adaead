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
from celeriac.stack.launching import KERNEL_TELLS, launched
from celeriac_storage import measuring
from celeriac_storage.database import Database

START_SECONDS = 60.0
STOP_SECONDS = 15.0
QUEUE = "celeriac"
AGENTS = str(Path(__file__).with_name("agents.py"))


class Processes:
    """Starts processes in process groups of their own. Leaving the block ends them all, and so does
    the end of this process, however that comes: they would work for ever on whatever is queued.
    """

    def __init__(self, database: Database, environment: Mapping[str, str]) -> None:
        self._database = database
        # As this installation is set up, except for where it works and for what tests arm.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("CELERIAC_TEST_")
        }
        self._environment = {
            **inherited,
            "CELERIAC_AGENTS": AGENTS,
            "CELERIAC_QUEUES": QUEUE,
            **environment,
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self._guards = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in self._started:
            process.terminate()  # all before the first wait; one that is dead is left alone
        for process in self._started:
            _end(process)
        self._guards.close()

    def start_scheduler(self) -> "subprocess.Popen[bytes]":
        return self.start("-m", "celeriac.cli.main", "scheduler")

    def start_worker(self) -> "subprocess.Popen[bytes]":
        """A worker, not waited for; its row has its pid."""
        return self.start("-m", "celeriac.cli.main", "worker")

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        theirs, ours = (None, None) if KERNEL_TELLS else os.pipe()
        process = subprocess.Popen(  # noqa: S603 - our own command line
            launched([sys.executable, *arguments], account=None, guard=theirs),
            env=self._environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=() if theirs is None else (theirs,),
        )
        if theirs is not None and ours is not None:
            os.close(theirs)
            self._guards.callback(os.close, ours)
        self._started.append(process)
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
    if not comes_true(fact, seconds, every):
        raise CeleriacError(f"waited {seconds:g} s for {what}, in vain")


def comes_true(fact: Callable[[], bool], seconds: float, every: float = 0.02) -> bool:
    """Whether it does within so many seconds."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
