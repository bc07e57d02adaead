"""Fixtures of the tests whose workers and schedulers are forked from one that imported everything.

A conftest takes them over by name: `nursery = fixtures.nursery`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac_storage.database import Database
from tests.crash.nursery import Nursery
from tests.crash.stack import Stack, started_processes
from tests.processes import Processes
from tests.servers import TestBroker


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def processes(
    database: Database, leased_broker: TestBroker, tmp_path: Path, nursery: Nursery
) -> Iterator[Processes]:
    with started_processes(database, leased_broker, tmp_path, nursery) as processes:
        yield processes


@pytest.fixture
def stack(database: Database, leased_broker: TestBroker, processes: Processes) -> Iterator[Stack]:
    stack = Stack(database, leased_broker, processes)
    yield stack
    stack.client.close()
