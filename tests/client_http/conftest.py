"""The API on the test's own database and broker, and people who reach it through clients."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from celeriac import Approval, Client
from celeriac_storage.database import Database
from tests.api.server import Api, serving
from tests.crash import fixtures
from tests.review_desk import REFUND, Desk, Ledger, refund_tool
from tests.streaming import conftest as streaming
from tests.talk import Talk

nursery = fixtures.nursery
processes = fixtures.processes
stack = fixtures.stack
service = streaming.service

PersonClient = Callable[..., Client]


@pytest.fixture
def api(database: Database, broker_url: str) -> Iterator[Api]:
    with serving(database, broker_url) as api:
        yield api


@pytest.fixture
def client_of(api: Api) -> Iterator[PersonClient]:
    """`client_of("alice", "operator")`: a client over HTTP, with a token of that person's."""
    with ExitStack() as clients:

        def make(user: str = "alice", *roles: str, tenant: str = "default") -> Client:
            token = api.token(user, *roles, tenant=tenant)
            return clients.enter_context(Client(url=api.url, token=token))

        yield make


@pytest.fixture
def talk(database: Database, broker_url: str) -> Iterator[Talk]:
    """The agent `talker`, whose first turn has a shelf scanned elsewhere."""
    talk = Talk(database, broker_url, [("scan", {"shelf": "A"})])
    yield talk
    talk.close()


@pytest.fixture
def desk(database: Database, broker_url: str) -> Iterator[Desk]:
    """The agent `desk`, whose refund any other person decides about."""
    ledger = Ledger()
    desk = Desk(
        database, broker_url, ledger, [refund_tool(ledger, Approval())], [("refund", REFUND)]
    )
    yield desk
    assert desk.violations() == []
    desk.close()
