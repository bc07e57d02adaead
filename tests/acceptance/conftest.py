"""Fixtures of the acceptance tests: a terminal on a running Celeriac, and the example on it.

Workers and schedulers are real processes, forked from one that has imported everything. Commands
run in the test's own process, through the application that `celeriac` is.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac_storage.database import Database
from tests.acceptance.shop import Shop
from tests.acceptance.terminal import Terminal
from tests.crash import fixtures
from tests.notifications import notification_service
from tests.processes import Processes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.processes)
            item.add_marker(pytest.mark.crash)


nursery = fixtures.nursery
processes = fixtures.processes


@pytest.fixture
def terminal(database: Database, processes: Processes) -> Terminal:
    return Terminal(database, processes)


@pytest.fixture
def shop(database: Database, processes: Processes, tmp_path: Path) -> Iterator[Shop]:
    with notification_service(tmp_path / "ledger.sqlite3") as service:
        yield Shop(database, processes, service)
