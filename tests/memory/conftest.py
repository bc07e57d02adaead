"""Fixtures of the tests of memories."""

from collections.abc import Iterator

import pytest

from celeriac_storage.database import Database
from tests.rememberer import Rememberer


@pytest.fixture
def rememberer(database: Database, broker_url: str) -> Iterator[Rememberer]:
    made = Rememberer(database, broker_url)
    yield made
    made.close()
