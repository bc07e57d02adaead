"""A Flower process of a test, and what it answers."""

import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from tests.processes import START_SECONDS, Processes, TestProcess
from tests.waiting import eventually

CREDENTIALS = ("operator", "made-up-password")

HEARD_SECONDS = 20.0
"""A heartbeat each 2 s, on a machine where others test as well."""


class FlowerServer:
    """`celeriac flower` on a free loopback port, asked with `CREDENTIALS`."""

    def __init__(self, processes: Processes, *, has_auth: bool = True) -> None:
        settings = {"flower_auth": ":".join(CREDENTIALS)} if has_auth else {}
        self.process = processes.start(["flower", "--port", "0"], settings=settings)
        self.url = listening_at(self.process)
        self.http = httpx2.Client(base_url=self.url, auth=CREDENTIALS if has_auth else None)

    def get(self, path: str, **parameters: object) -> Any:
        response = self.http.get(path, params={k: str(v) for k, v in parameters.items()})
        response.raise_for_status()
        return response.json()

    def online(self) -> dict[str, bool]:
        """Each worker it has heard of, and whether it takes it to be online."""
        return dict(self.get("/api/workers", status=True))

    def wait_until_online(self, workers: Sequence[TestProcess]) -> None:
        """Until it shows all of these online; on RabbitMQ it sees other tests' workers too."""
        everybody = {name_of(worker): True for worker in workers}
        eventually(
            self.online,
            until=lambda seen: everybody.items() <= seen.items(),
            deadline_seconds=HEARD_SECONDS,
            what="all workers online",
        )

    def task(self, task_id: str) -> Mapping[str, Any]:
        return dict(self.get(f"/api/task/info/{task_id}"))

    def search(self, text: str) -> dict[str, Any]:
        """The tasks that a search finds, by id."""
        return dict(self.get("/api/tasks", search=text))

    def events_heard(self, worker: str, event: str) -> int:
        workers = self.get("/workers", json=1)["data"]
        return sum(int(each.get(event, 0)) for each in workers if each["hostname"] == worker)

    def close(self) -> None:
        self.http.close()


def name_of(worker: TestProcess) -> str:
    """What Celery calls it, made from what `celeriac workers` shows: its process and its host."""
    return f"celeriac-{worker.pid}@{socket.gethostname()}"


def listening_at(process: TestProcess) -> str:
    """The URL that it says it listens at; fails at once if the process has ended."""

    def look() -> str | None:
        found = re.search(r"^Flower is at (\S+)$", process.output, re.MULTILINE)
        return found.group(1) if found else None

    eventually(
        lambda: look() or not process.is_running,
        deadline_seconds=START_SECONDS,
        what="Flower listening",
    )
    url = look()
    assert url is not None, f"Flower has ended:\n{process.output}"
    return url
