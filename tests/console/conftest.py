"""The console of an API on the test's own database, and people who visit it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac_storage.database import Database
from tests import browser as browsers
from tests.api.server import Api, serving
from tests.console.visitor import Visitor, Visitors
from tests.crash import fixtures

nursery = fixtures.nursery
processes = fixtures.processes
stack = fixtures.stack
browser = browsers.browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "browser" in getattr(
            item, "fixturenames", ()
        ):
            item.add_marker(pytest.mark.browser)


@pytest.fixture
def api(database: Database, broker_url: str) -> Iterator[Api]:
    # Pages fetch themselves again and again: how often is not what these tests are about.
    with serving(
        database, broker_url, api_requests_per_second=1000, api_burst_requests=10_000
    ) as api:
        yield api


@pytest.fixture
def visitors(api: Api) -> Iterator[Visitors]:
    visitors = Visitors(api)
    yield visitors
    visitors.close()


@pytest.fixture
def alice(visitors: Visitors) -> Visitor:
    """A user who is signed in."""
    return visitors.signed_in("alice")
