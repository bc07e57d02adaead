"""The stack's own processes: scheduler, workers, API and Flower, each as `celeriac COMMAND`."""

import os
import socket
import sys
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from celeriac.errors import CeleriacError
from celeriac.settings import Settings
from celeriac.stack.folder import Folder
from celeriac.stack.gate import Gate
from celeriac.stack.ports import LOOPBACK
from celeriac.stack.service import Program

if TYPE_CHECKING:
    from celeriac_storage.database import Database

SCHEDULER = "scheduler"
FLOWER = "flower"
API = "api"
AFTER_GRACE_SECONDS = 10.0
"""A worker hands its steps back at the end of its grace, and needs a moment to leave."""

ANSWER_SECONDS = 0.5


class Processes:
    """Makes their programs. `environment` is theirs, with the servers in it; they work in the
    current folder, so that agents are found as they are by the commands that a user types.

    They may be started before the servers answer: they wait at the gate until there is a schema.
    `database` is asked for from then on.
    """

    def __init__(
        self,
        folder: Folder,
        environment: Mapping[str, str],
        gate: Gate,
        database: "Callable[[], Database]",
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._gate = gate
        self._database = database

    def scheduler(self) -> Program:
        return self._program(SCHEDULER, SCHEDULER, is_ready=self._has_scheduler)

    def worker(self, name: str) -> Program:
        return self._program(
            name,
            "worker",
            is_ready=self._is_registered,
            stop_seconds=_grace_seconds(self._environment) + AFTER_GRACE_SECONDS,
        )

    def flower(self, port: int) -> Program:
        return self._program(
            FLOWER,
            *("flower", "--address", LOOPBACK, "--port", str(port)),
            address=f"http://{LOOPBACK}:{port}",
            is_ready=lambda _: _is_healthy(port, "/healthcheck"),
        )

    def api(self, port: int, flower_port: int) -> Program:
        flower_url = f"http://{LOOPBACK}:{flower_port}"  # if nothing else was named
        return self._program(
            API,
            *("api", "--host", LOOPBACK, "--port", str(port)),
            environment={"CELERIAC_FLOWER_URL": flower_url, **self._environment},
            address=f"http://{LOOPBACK}:{port}",
            is_ready=lambda _: _is_healthy(port, "/readyz"),
        )

    def _program(
        self,
        name: str,
        *command: str,
        is_ready: Callable[[int], bool],
        address: str | None = None,
        stop_seconds: float = 10.0,
        environment: Mapping[str, str] | None = None,  # the usual one
    ) -> Program:
        return Program(
            name=name,
            # -P: a file of the user's that is called like a library must not be taken for it.
            command=[sys.executable, "-P", "-m", "celeriac.cli.service", *command],
            environment=environment or self._environment,
            folder=Path.cwd(),
            log=self._folder.log(name),
            address=address,
            input=self._gate.input,
            is_held=lambda: not self._gate.is_open,  # a migration may take long
            is_ready=is_ready,
            stop_seconds=stop_seconds,
        )

    def _has_scheduler(self, _pid: int) -> bool:
        """It has its session, and some scheduler leads: maybe still one that was killed."""
        from celeriac_storage.health import read_crew, scheduler_silence_seconds

        try:
            with self._database().connect() as connection:
                return (
                    scheduler_silence_seconds(connection) is not None
                    and read_crew(connection).has_scheduler
                )
        except CeleriacError:
            return False

    def _is_registered(self, pid: int) -> bool:
        """A worker of its process group is: with a pool of processes, one of its children."""
        from celeriac_storage.workers import list_workers

        try:
            with self._database().connect() as connection:
                workers = list_workers(connection)
        except CeleriacError:
            return False
        hostname = socket.gethostname()
        return any(
            worker.alive and worker.hostname == hostname and _leads(pid, worker.pid)
            for worker in workers
        )


def _leads(leader: int, pid: int) -> bool:
    try:
        return os.getpgid(pid) == leader
    except ProcessLookupError:
        return False


def _is_healthy(port: int, path: str) -> bool:
    connection = HTTPConnection(LOOPBACK, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _grace_seconds(environment: Mapping[str, str]) -> float:
    default = float(Settings.model_fields["grace_seconds"].default)
    return float(environment.get("CELERIAC_GRACE_SECONDS") or default)
