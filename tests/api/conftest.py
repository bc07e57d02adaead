"""The API on the test's own database and broker, and an agent that people talk to."""

from collections.abc import Iterator

import pytest

from celeriac_storage.database import Database
from tests.api.server import Api, serving
from tests.talk import Talk


@pytest.fixture
def api(database: Database, broker_url: str) -> Iterator[Api]:
    with serving(database, broker_url) as api:
        yield api


@pytest.fixture
def talk(database: Database, broker_url: str) -> Iterator[Talk]:
    """The agent `talker`, whose first turn takes a note and has a shelf scanned."""
    talk = Talk(database, broker_url, [("scan", {"shelf": "A"})])
    yield talk
    talk.close()
