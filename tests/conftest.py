"""Fixtures: a database and a broker for each test alone, and real processes on them.

database_url        a fresh, migrated PostgreSQL database
empty_database_url  one without any tables
database            a `Database` on `database_url`
broker_url, queue   an empty broker; `@pytest.mark.parametrize("broker", ["redis", "amqp"])` runs
                    a test on both kinds
processes           starts workers and schedulers on both; their output is shown on failure
"""

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from celeriac_storage.database import Database
from tests import embedded
from tests.processes import Processes
from tests.servers import (
    BrokerKind,
    DatabaseServer,
    TestBroker,
    default_broker_kind,
    lease_broker,
    uses_system_servers,
)

SHOWN_OUTPUT_CHARACTERS = 8000

# A script that starts the tests in its background has this ignored, and what they start would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

EMBEDDED_SERVERS = pytest.StashKey[embedded.EmbeddedServers]()

# A test fails for what it finds, not for how long a busy machine takes to find it. The rest is
# Hypothesis's own profile: in CI the one without chance.
hypothesis.settings.register_profile(
    "celeriac", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("celeriac")


def pytest_configure(config: pytest.Config) -> None:
    # Set already in xdist's workers, and in a pytest that a test starts: those share ours.
    if not uses_system_servers() and embedded.VARIABLE not in os.environ:
        config.stash[EMBEDDED_SERVERS] = embedded.EmbeddedServers()


def pytest_unconfigure(config: pytest.Config) -> None:
    if (servers := config.stash.get(EMBEDDED_SERVERS, None)) is not None:
        servers.close()


def pytest_report_header() -> str:
    return f"servers: {'system' if uses_system_servers() else 'embedded'}"


@pytest.fixture(scope="session")
def database_server() -> Iterator[DatabaseServer]:
    server = DatabaseServer()
    yield server
    server.close()


@pytest.fixture
def database_url(database_server: DatabaseServer) -> Iterator[str]:
    with database_server.database(migrated=True) as url:
        yield url


@pytest.fixture
def empty_database_url(database_server: DatabaseServer) -> Iterator[str]:
    with database_server.database(migrated=False) as url:
        yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url, connections=32)
    yield database
    database.close()


@pytest.fixture
def broker() -> BrokerKind:
    """Which kind of broker the test runs on; parametrize it to change that."""
    return default_broker_kind()


@pytest.fixture
def leased_broker(broker: BrokerKind) -> Iterator[TestBroker]:
    with lease_broker(broker) as leased:
        yield leased


@pytest.fixture
def broker_url(leased_broker: TestBroker) -> str:
    return leased_broker.url


@pytest.fixture
def queue(leased_broker: TestBroker) -> str:
    """The queue for `CELERIAC_QUEUES` and for the runs: the default one, except on RabbitMQ, where
    all tests share a server and the queue's name is what keeps them apart."""
    return leased_broker.queue


@pytest.fixture
def processes(database: Database, leased_broker: TestBroker, tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(database, leased_broker, tmp_path)
    yield processes
    processes.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the processes of a failed test have written."""
    report = yield
    processes = getattr(item, "funcargs", {}).get("processes")
    if report.failed and isinstance(processes, Processes):
        for process in processes.started:
            report.sections.append(
                (f"output of {process.name}", process.output[-SHOWN_OUTPUT_CHARACTERS:])
            )
    return report
