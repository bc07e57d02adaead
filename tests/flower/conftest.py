"""Fixtures: a stack with agents to kill, and Flower beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import browser as browsers
from tests.crash import fixtures
from tests.flower.server import FlowerServer
from tests.processes import Processes


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.processes)


browser = browsers.browser
nursery = fixtures.nursery
processes = fixtures.processes
stack = fixtures.stack


@pytest.fixture
def flower(processes: Processes) -> Iterator[FlowerServer]:
    flower = FlowerServer(processes)
    yield flower
    flower.close()
