"""After a death or a flush, no more is published than was lost, and nobody waits for that."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis
from celery import Celery
from sqlalchemy import Row

from celeriac.settings import Settings, load_settings
from celeriac_scheduler.outlet import OWED_BATCH, Outlet
from celeriac_scheduler.redispatch import Redispatch
from celeriac_storage import dispatch
from celeriac_storage.database import Database
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.publisher import Publisher
from tests.steps_by_hand import Hand

QUEUE = "celeriac"


@pytest.fixture
def settings(database_url: str, broker_url: str) -> Settings:
    return load_settings(database_url=database_url, broker_url=broker_url)


@pytest.fixture
def app(settings: Settings) -> Iterator[Celery]:
    app = make_app(settings)
    yield app
    app.close()


@pytest.fixture
def messages(app: Celery) -> Broker:
    return Broker(app)


@pytest.fixture
def outlet(database: Database, app: Celery, messages: Broker) -> Outlet:
    return Outlet(database, Publisher(app), messages)


def publish(hand: Hand, outlet: Outlet, runs: int) -> None:
    for _ in range(runs):
        hand.start()
    with hand.database.connect() as connection:
        outlet.publish(dispatch.take_unpublished(connection))


def owe(database: Database, outlet: Outlet) -> None:
    with database.connect() as connection:
        outlet.owe(dispatch.now(connection))


def lose(broker_url: str, messages: int) -> None:
    """Take the oldest messages off the broker, as a worker that then dies."""
    with redis.Redis.from_url(broker_url) as client:
        for _ in range(messages):
            assert client.rpop(QUEUE)


def test_as_many_steps_are_published_again_as_the_broker_has_lost(
    database: Database, broker_url: str, messages: Broker, outlet: Outlet
) -> None:
    hand = Hand(database)
    publish(hand, outlet, runs=5)
    oldest = [run.run_id for run in _published(database)][:2]
    lose(broker_url, 2)

    owe(database, outlet)
    outlet.pay()

    assert messages.queue_length(QUEUE) == 5
    again = [run.run_id for run in _published(database) if run.publish_count == 2]
    assert sorted(again) == sorted(oldest)


def test_what_is_owed_is_published_batch_by_batch(
    database: Database, broker_url: str, messages: Broker, outlet: Outlet
) -> None:
    hand = Hand(database)
    publish(hand, outlet, runs=OWED_BATCH + 1)
    lose(broker_url, OWED_BATCH + 1)
    owe(database, outlet)

    lengths = []
    for _ in range(3):
        outlet.pay()
        lengths.append(messages.queue_length(QUEUE))

    assert lengths == [OWED_BATCH, OWED_BATCH + 1, OWED_BATCH + 1]


def test_a_scheduler_that_never_looked_at_the_broker_before_takes_it_for_flushed(
    database: Database, settings: Settings, broker_url: str, messages: Broker, outlet: Outlet
) -> None:
    """What flushed it may have taken the scheduler that led before along."""
    # features: 003-13
    publish(Hand(database), outlet, runs=3)
    lose(broker_url, 3)

    Redispatch(database, outlet, messages, settings).watch_broker()
    outlet.pay()

    assert messages.queue_length(QUEUE) == 3


def _published(database: Database) -> Sequence[Row[Any]]:
    with database.connect() as connection:
        return connection.exec_driver_sql(
            "SELECT run_id, publish_count FROM celeriac.runs ORDER BY published_at"
        ).all()
