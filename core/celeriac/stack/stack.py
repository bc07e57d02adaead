"""A whole Celeriac on this machine: servers, scheduler, workers, API, Flower, as one thing."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from celeriac.errors import StackFailed
from celeriac.stack import processes
from celeriac.stack.description import Description, Service
from celeriac.stack.gate import Gate
from celeriac.stack.ports import LOOPBACK, is_free
from celeriac.stack.processes import Processes
from celeriac.stack.servers import Servers
from celeriac.stack.service import Line

if TYPE_CHECKING:
    from celeriac_storage.database import Database


class Stack:
    """Starts everything in the right order, keeps it running, and stops it.

        with Stack(Path(".celeriac"), agents="shop.py") as stack:
            client = Client(stack.database_url, stack.broker_url)
            stack.kill("worker-1")  # a new one is there within seconds

    The services are `postgres` and `broker` (`Servers`; not there if their URL is given),
    `scheduler`, `worker-1` to `worker-N`, `api` and `flower`. Each leads a process group of its
    own, is started again when it ends, and ends when this process does, however that ends. What
    they write is in `DATA/logs`. `DATA/stack.json` tells other processes where everything is, from
    the moment all are ready until the stack stops.

    Without agents there is nothing that workers could run, so none is started; one started by hand
    beside the stack finds it.
    """

    def __init__(
        self,
        data: Path,
        *,
        workers: int = 2,
        agents: str = "",
        flower_port: int | None = None,  # None: a free one, the same each time
        database_url: str | None = None,
        broker_url: str | None = None,
        environment: Mapping[str, str] | None = None,
        on_change: Callable[[Sequence[Line]], None] = lambda _: None,
    ) -> None:
        """`agents` are modules, as in `CELERIAC_AGENTS`. `environment` is for our own processes, on
        top of this one's. `on_change` is told of every change, in another thread."""
        self._workers = [f"worker-{number}" for number in range(1, workers + 1)] if agents else []
        self._agents = agents
        self._flower_port = flower_port
        self._has_own_database = database_url is None
        self._environment = {**os.environ, **(environment or {})}
        self._on_change = on_change
        self._servers = Servers(
            data, database_url=database_url, broker_url=broker_url, on_change=self._tell
        )
        self._database: Database | None = None
        self._gate: Gate | None = None
        self.new_api_token: str | None = None  # where this start has made one; it is shown once
        self.one_time_token: str | None = None  # of the console, made by this start
        self._is_complete = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def data(self) -> Path:
        """The folder, absolute."""
        return self._servers.folder.path

    @property
    def database_url(self) -> str:
        """With its password. Known once it has been started."""
        return self._servers.database_url

    @property
    def broker_url(self) -> str:
        """With its password. Known once it has been started."""
        return self._servers.broker_url

    @property
    def services(self) -> Sequence[Line]:
        """Every service in the order of its start, as it was a moment ago. While it runs."""
        return self._servers.supervisor.lines

    @property
    def description(self) -> Description:
        """What `DATA/stack.json` says."""
        return self._describe(self.services)

    def start(
        self, give_up: threading.Event | None = None, hurry: threading.Event | None = None
    ) -> None:
        """Returns when all are ready, within a few seconds.

        Raises `StackRunning` or `StackFailed`, also when `give_up` is set meanwhile; then nothing
        of it runs any more: it was stopped, with `hurry` as in `stop`.
        """
        try:
            self._servers.folder.hold()
            self._require_flower_port()
            self._servers.launch()
            flower_port = self._flower_port or self._servers.folder.port("flower port")
            api_port = self._servers.folder.port("api port")
            self._gate = Gate()
            made = Processes(
                self._servers.folder, self._process_environment(), self._gate, self._open_database
            )
            supervisor = self._servers.supervisor
            # To import takes them longer than the servers need to come up. What does the work goes
            # first: the others compete with it for the processors, and Flower complains if it is
            # up before the first worker.
            supervisor.launch([made.scheduler(), *map(made.worker, self._workers)])
            self._prepare(give_up)
            self._gate.open()
            supervisor.wait([processes.SCHEDULER], give_up)
            supervisor.launch([made.api(api_port, flower_port)])
            supervisor.wait(self._workers, give_up)
            supervisor.launch([made.flower(flower_port)])
            supervisor.wait([processes.API, processes.FLOWER], give_up)
            self._is_complete = True
            self._servers.folder.describe(self.description.to_json())
        except BaseException:
            self.stop(hurry)
            raise

    def stop(self, hurry: threading.Event | None = None) -> None:
        """Stop everything: the API and workers, then scheduler and Flower, then the servers.

        Workers finish the steps that they have begun, for as long as CELERIAC_GRACE_SECONDS;
        setting `hurry` ends that. May be called again.
        """
        self._is_complete = False
        if self._servers.is_started:
            with suppress(OSError):  # a stale one is recognised by the lock
                self._servers.folder.remove_description()
            self._servers.supervisor.stop([processes.API, *self._workers], hurry)
            self._servers.supervisor.stop([processes.SCHEDULER, processes.FLOWER], hurry)
        if self._database is not None:
            self._database.close()
            self._database = None
        self._servers.stop()
        if self._gate is not None:
            self._gate.close()
            self._gate = None

    def kill(self, service: str) -> int:
        """SIGKILL to a service's whole process group, and its number; it will be started again.

        Raises `StackFailed` if there is no such service or it does not run just now.
        """
        return self._servers.supervisor.kill(service)

    def lose_broker_data(self, give_up: threading.Event | None = None) -> None:
        """Kill the broker and start it again without anything that it held; returns when it
        answers. Raises `StackFailed` if it does not, or is not ours, or when `give_up` is set."""
        self._servers.lose_broker_data(give_up)

    def _prepare(self, give_up: threading.Event | None) -> None:
        """Wait for the servers, and make the schema and the tokens."""
        # Only here: SQLAlchemy takes as long to import as the servers take to come up meanwhile.
        from celeriac.stack.api_token import make_api_token, make_one_time_token
        from celeriac_storage.database import Database
        from celeriac_storage.schema import migrate

        self._servers.wait(give_up)
        self._database = Database(self.database_url, connections=2, pre_ping=True)
        migrate(self._database)
        self.new_api_token = make_api_token(self._servers.folder, self._database)
        self.one_time_token = make_one_time_token(self._database)

    def _open_database(self) -> "Database":
        assert self._database is not None, "the gate is open, so it has been prepared"
        return self._database

    def _process_environment(self) -> Mapping[str, str]:
        environment = {
            **self._environment,
            "CELERIAC_DATABASE_URL": self.database_url,
            "CELERIAC_BROKER_URL": self.broker_url,
            "CELERIAC_AGENTS": self._agents,
            "CELERIAC_DATA": str(self._servers.folder.path),  # where their workspaces are
            "PYTHONUNBUFFERED": "1",
        }
        if self._has_own_database:
            environment.pop("CELERIAC_DATABASE_DIRECT_URL", None)  # of some other database
        return environment

    def _require_flower_port(self) -> None:
        if self._flower_port is not None and not is_free(self._flower_port):
            raise StackFailed(
                f"port {self._flower_port} of {LOOPBACK} is in use by another program: give "
                "another --port, or none to have a free one found"
            )

    def _tell(self, lines: Sequence[Line]) -> None:
        # In the supervisor's thread: `stop` may remove the description between the two lines, and
        # this writes it once more. Nobody believes it: the lock says that the stack is gone.
        if self._is_complete:
            self._servers.folder.describe(self._describe(lines).to_json())
        self._on_change(lines)

    def _describe(self, lines: Sequence[Line]) -> Description:
        addresses = {line.name: line.address for line in lines}
        return Description(
            database_url=self.database_url,
            broker_url=self.broker_url,
            api_url=addresses.get(processes.API),
            flower_url=addresses.get(processes.FLOWER),
            services=[Service(line.name, line.pid, line.address) for line in lines],
        )
