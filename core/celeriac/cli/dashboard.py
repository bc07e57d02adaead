"""What `celeriac up` shows in a terminal: services, queues, runs, and workers that died."""

import threading
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

LONGEST_SILENCE_SECONDS = 10.0 + PAUSE_SECONDS / LARGEST_SHARE


class Dashboard:
    """Reads the database and the broker in a thread of its own, and draws what that saw last."""

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
        self._asked_at = time.monotonic()
        self._is_over = threading.Event()
        # A server that is frozen must not keep whoever draws from hearing Ctrl-C.
        self._thread = threading.Thread(target=self._live, name="celeriac-dashboard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join(PAUSE_SECONDS)
        self._app.close()
        self._database.close()

    def draw(self) -> "RenderableType":
        from rich.console import Group
        from rich.text import Text

        silence_seconds = time.monotonic() - self._asked_at
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
        elif silence_seconds > LONGEST_SILENCE_SECONDS:
            parts.append(Text(f"  no answer for {silence_seconds:.0f} s", style="red"))
        if self._overview.deaths:
            parts.append(self._deaths())
        return Group(*parts)

    def _live(self) -> None:
        pause_seconds = 0.0
        while not self._is_over.wait(pause_seconds):
            began = self._asked_at = time.monotonic()
            self._ask()
            pause_seconds = max(PAUSE_SECONDS, (time.monotonic() - began) / LARGEST_SHARE)

    def _ask(self) -> None:
        try:
            with self._database.connect() as connection:
                self._overview = read_overview(connection)
            self._lengths = {name: self._broker.queue_length(name) for name in self._queues}
            self._trouble = None
        except CeleriacError as error:
            self._trouble = str(error)

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
