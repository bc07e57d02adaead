"""The two servers of a stack, a database and a broker, without anything that works on them."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from celeriac.errors import StackFailed
from celeriac.stack import broker, postgres
from celeriac.stack.broker import Broker
from celeriac.stack.folder import Folder
from celeriac.stack.postgres import Postgres
from celeriac.stack.service import Line
from celeriac.stack.supervisor import Supervisor

Part = TypeVar("Part")


class Servers:
    """A PostgreSQL and a Redis-compatible broker of one's own, with data in the folder `data`.

        with Servers(Path(".celeriac")) as servers:
            Client(servers.database_url, servers.broker_url)

    Where a URL is given, that server is used and none is started for it. The database exists and
    has no tables of ours until it is migrated. What was committed, and what the broker
    acknowledged, outlives every process here; ports and passwords stay the same from start to
    start, unless somebody else has taken the port meanwhile.

    One process at a time uses a folder. If that is killed, the servers end with it.
    """

    def __init__(
        self,
        data: Path,
        *,
        database_url: str | None = None,
        broker_url: str | None = None,
        on_change: Callable[[Sequence[Line]], None] = lambda _: None,
    ) -> None:
        """`on_change` is told of every change, in another thread (`Supervisor`)."""
        self.folder = Folder(data)
        self._given = (database_url, broker_url)
        self._on_change = on_change
        self._postgres: Postgres | None = None
        self._broker: Broker | None = None
        self._supervisor: Supervisor | None = None

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
    def database_url(self) -> str:
        """With its password. Known once it has been started, and for good."""
        return self._given[0] or _started(self._postgres).url

    @property
    def broker_url(self) -> str:
        """With its password. Known once it has been started, and for good."""
        return self._given[1] or _started(self._broker).url

    @property
    def is_started(self) -> bool:
        return self._supervisor is not None

    @property
    def supervisor(self) -> Supervisor:
        """Runs the servers, and whatever else is to live and die with them."""
        return _started(self._supervisor)

    def start(self, give_up: threading.Event | None = None) -> None:
        """Returns when both answer; raises `StackRunning` or `StackFailed`, and then none runs."""
        try:
            self.launch()
            self.wait(give_up)
        except BaseException:
            self.stop()
            raise

    def launch(self) -> None:
        """Begin to start them: where they will be is known. Raises as `start` does, but leaves what
        was begun to `stop`."""
        self.folder.hold()
        database_url, broker_url = self._given
        if database_url is None:
            self._postgres = Postgres(self.folder)
        if broker_url is None:
            self._broker = Broker(self.folder)
        self._supervisor = Supervisor(self._on_change)
        self._supervisor.launch([each.program for each in (self._postgres, self._broker) if each])

    def wait(self, give_up: threading.Event | None = None) -> None:
        """Returns when both that were launched answer. Raises `StackFailed`."""
        made = {postgres.NAME: self._postgres, broker.NAME: self._broker}
        self.supervisor.wait([name for name, server in made.items() if server], give_up)
        if self._postgres is not None:
            self._postgres.make_database()

    def stop(self) -> None:
        """Stop the broker, then the database, and give the folder free. May be called again."""
        if self._supervisor is not None:
            self._supervisor.stop([broker.NAME])
            self._supervisor.stop([postgres.NAME])
            self._supervisor.close()
            self._supervisor = None
        self.folder.release()

    def lose_broker_data(self, give_up: threading.Event | None = None) -> None:
        """Kill the broker and start it again without anything that it held; returns when it
        answers. Raises `StackFailed` if it does not, or when `give_up` is set, or if its URL was
        given: that one is not ours to kill."""
        if self._broker is None:
            raise StackFailed("the broker was given by its URL, so it cannot be killed here")
        self.supervisor.restart(broker.NAME, between=self._broker.forget, give_up=give_up)


def _started(part: Part | None) -> Part:
    assert part is not None, "start first"
    return part
