"""Fixtures: real API processes and workers, forked from one that imported everything."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celeriac.ids import DEFAULT_TENANT, UserId
from celeriac_storage import tokens
from celeriac_storage.database import Database
from tests.crash import fixtures
from tests.crash.stack import Stack
from tests.processes import Processes, TestProcess
from tests.provider_server import ProviderServer
from tests.streaming import agents
from tests.streaming.subscriber import Subscriber
from tests.waiting import eventually

AGENTS = f"{agents.__name__},tests.crash.agents"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.processes)


nursery = fixtures.nursery
processes = fixtures.processes
stack = fixtures.stack


class Service:
    """API processes, and subscribers with a token that sees all runs of the tenant."""

    def __init__(self, stack: Stack, processes: Processes) -> None:
        self.stack = stack
        self.token = make_token(stack.database, "olga", "operator")
        self._processes = processes
        self._subscribers: list[Subscriber] = []

    def start_api(
        self, port: int = 0, *, test_points: str = "", **settings: object
    ) -> tuple[TestProcess, str]:
        """A new API process and its address."""
        more = {"api_requests_per_second": 1000, "api_burst_requests": 10000, **settings}
        process = self._processes.start(
            ["api", "--port", str(port)], test_points=test_points, settings=more
        )
        found = eventually(
            lambda: re.search(r"the API is at (\S+)", process.output) or not process.is_running,
            what="the API listens",
        )
        assert isinstance(found, re.Match), process.output
        return process, found[1]

    def start_worker(self, *, test_points: str = "", **settings: object) -> TestProcess:
        return self._processes.start_worker(AGENTS, test_points=test_points, **settings)

    def subscribe(
        self,
        url: str,
        run_id: str,
        *,
        after: int | None = None,
        last_event_id: str | None = None,
        token: str | None = None,
    ) -> Subscriber:
        subscriber = Subscriber(
            url, token or self.token, run_id, after=after, last_event_id=last_event_id
        )
        self._subscribers.append(subscriber)
        return subscriber

    def seqs(self, run_id: str) -> list[int]:
        """Those of the table."""
        rows = self.stack.query(
            "SELECT seq FROM celeriac.events WHERE run_id = %s ORDER BY seq", run_id
        )
        return [seq for (seq,) in rows]

    def listeners(self, run_id: str) -> int:
        """How many API processes hear this run's bell."""
        with redis.Redis.from_url(self.stack.broker.url) as client:
            ((_, count),) = client.pubsub_numsub(f"celeriac:run:{run_id}")
            return int(count)

    def close(self) -> None:
        for subscriber in self._subscribers:
            subscriber.close()


def make_token(database: Database, user: str, *roles: str) -> str:
    with database.begin() as connection:
        _, secret = tokens.create(
            connection,
            DEFAULT_TENANT,
            UserId(user),
            name="for a test",
            roles=roles or ("user",),
            expires_days=None,
            by=UserId("test"),
        )
    return secret


@pytest.fixture
def service(stack: Stack, processes: Processes) -> Iterator[Service]:
    service = Service(stack, processes)
    yield service
    service.close()


@pytest.fixture
def provider(processes: Processes) -> Iterator[ProviderServer]:
    """The one that `storyteller` asks: say what it replies with `will_reply`."""
    with ProviderServer([]) as provider:
        processes.environment[agents.PROVIDER_URL] = provider.url
        yield provider
