"""Fixtures of the crash tests: a stack with agents to kill, its processes forked, not imported."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac_storage.database import Database
from tests.crash import fixtures
from tests.crash.nursery import Nursery
from tests.crash.stack import OrderDesk, started_processes
from tests.notifications import NotificationService, notification_service
from tests.processes import Processes
from tests.servers import DatabaseServer, TestBroker, lease_broker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.processes)
            item.add_marker(pytest.mark.crash)


nursery = fixtures.nursery
processes = fixtures.processes
stack = fixtures.stack


@pytest.fixture(scope="session")
def notifications(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NotificationService]:
    with notification_service(tmp_path_factory.mktemp("ledger") / "ledger.sqlite3") as service:
        yield service


@pytest.fixture
def desk(
    database: Database,
    leased_broker: TestBroker,
    processes: Processes,
    notifications: NotificationService,
) -> Iterator[OrderDesk]:
    desk = OrderDesk(database, leased_broker, processes, notifications)
    yield desk
    desk.client.close()


@pytest.fixture(scope="module")
def shared_desk(
    request: pytest.FixtureRequest,
    database_server: DatabaseServer,
    notifications: NotificationService,
    nursery: Nursery,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OrderDesk]:
    """One desk with a running scheduler for all cases of a module on one kind of broker."""
    folder = tmp_path_factory.mktemp("shared")
    with (
        database_server.database(migrated=True) as url,
        lease_broker(request.param) as broker,
    ):
        database = Database(url, connections=8)
        with started_processes(database, broker, folder, nursery) as processes:
            desk = OrderDesk(database, broker, processes, notifications)
            desk.start_scheduler()
            yield desk
            desk.client.close()
        database.close()
