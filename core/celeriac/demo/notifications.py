"""The notification service: somebody else's process, with a ledger that knows nothing of runs."""

import json
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

from celeriac.demo.examples import NOTIFICATION_SERVICE
from celeriac.errors import CeleriacError
from celeriac.stack.ports import LOOPBACK, find_free
from celeriac.stack.service import Program
from celeriac.stack.supervisor import Supervisor

ANSWER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Ledger:
    """The order of each request that the service got and of each delivery that a customer got,
    oldest first."""

    requests: Sequence[str]
    deliveries: Sequence[str]


class NotificationService:
    """The example's service as a process of its own, which lives no longer than we do."""

    def __init__(self, folder: Path) -> None:
        """Its ledger and its log are in `folder`, which exists when it is started."""
        port = find_free()
        self.address = f"http://{LOOPBACK}:{port}"
        self.ledger_file = folder / "notifications.sqlite3"
        self._supervisor = Supervisor()
        self._program = Program(
            name="notification service",
            command=[
                *(sys.executable, str(NOTIFICATION_SERVICE)),
                *("--port", str(port), "--ledger", str(self.ledger_file)),
            ],
            environment=os.environ,
            folder=folder,
            log=folder / "notifications.log",
            address=self.address,
            is_ready=lambda _: self._answers(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._supervisor.stop([self._program.name])
        self._supervisor.close()

    def start(self, give_up: threading.Event | None = None) -> None:
        """Returns when it answers. Raises `StackFailed`."""
        self._supervisor.start([self._program], give_up)

    def drop_answers(self, is_dropping: bool) -> None:
        """From now on deliver and then close the connection without a word; or stop doing that."""
        fault = {"drop_response": is_dropping}
        self._ask("POST", "/fault", fault)

    def read_ledger(self) -> Ledger:
        """Asked over HTTP, as its owner would be."""
        rows = self._ask("GET", "/ledger").json()
        requests, deliveries = (
            [str(json.loads(row["body"])["order_id"]) for row in rows[table]]
            for table in ("requests", "deliveries")
        )
        return Ledger(requests, deliveries)

    def _ask(self, method: str, path: str, value: object = None) -> httpx2.Response:
        """Raises `CeleriacError` if it does not answer as it should."""
        try:
            return httpx2.request(method, f"{self.address}{path}", json=value).raise_for_status()
        except httpx2.HTTPError as error:
            raise CeleriacError(
                f"the notification service at {self.address} does not answer {method} {path} "
                f"({str(error) or type(error).__name__}); its log is {self._program.log}"
            ) from error

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.address}/ledger", timeout=ANSWER_SECONDS).is_success
        except httpx2.HTTPError:
            return False
