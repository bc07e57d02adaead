"""What `celeriac up` shows in a terminal: services, queues, runs, and workers that died."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pydantic import SecretStr

from celeriac.cli.output import table, time_of_day
from celeriac.errors import CeleriacError
from celeriac.settings import Settings
from celeriac.stack.stack import Stack
from celeriac_storage.database import Database
from celeriac_storage.overview import Overview, read_overview
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app

if TYPE_CHECKING:
    from rich.console import RenderableType

PAUSE_SECONDS = 1.0
LARGEST_SHARE = 0.05
"""Of the time that may go into asking: counting many runs takes its while."""


class Dashboard:
    """Reads the database and the broker, and draws what it saw last while one of them is away."""

    def __init__(self, stack: Stack, settings: Settings) -> None:
        servers = settings.model_copy(update={"broker_url": SecretStr(stack.broker_url)})
        self._stack = stack
        self._queues = settings.queue_names
        self._database = Database(stack.database_url, connections=1, pre_ping=True)
        self._app = make_app(servers)
        self._broker = Broker(self._app)
        self._overview = Overview({}, [])
        self._lengths: dict[str, int] = {}
        self._trouble: str | None = None
        self._asking_seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._app.close()
        self._database.close()

    @property
    def pause_seconds(self) -> float:
        return max(PAUSE_SECONDS, self._asking_seconds / LARGEST_SHARE)

    def draw(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        self._ask()
        runs = ", ".join(
            f"{count} {status}" for status, count in sorted(self._overview.runs.items())
        )
        queues = ", ".join(f"{name} {length}" for name, length in self._lengths.items())
        parts: list[RenderableType] = [
            self._services(),
            Text(f"  runs    {runs or 'none yet'}"),
            Text(f"  queues  {queues or 'unknown'}"),
        ]
        if self._trouble is not None:
            parts.append(Text(f"  {self._trouble}", style="red"))
        if self._overview.deaths:
            parts.append(self._deaths())
        return Group(*parts)

    def _ask(self) -> None:
        began = time.monotonic()
        try:
            with self._database.connect() as connection:
                self._overview = read_overview(connection)
            self._lengths = {name: self._broker.queue_length(name) for name in self._queues}
            self._trouble = None
        except CeleriacError as error:
            self._trouble = str(error)
        self._asking_seconds = time.monotonic() - began

    def _services(self) -> "RenderableType":
        return table(
            ["service", "state", "pid", "restarts", "address", "last trouble"],
            [
                (line.name, line.state, line.pid, line.restarts, line.address, line.problem)
                for line in self._stack.services
            ],
        )

    def _deaths(self) -> "RenderableType":
        return table(
            ["died", "worker", "pid", "noticed by"],
            [
                (time_of_day(death.at), death.worker_id, death.pid, death.verdict)
                for death in self._overview.deaths
            ],
        )
