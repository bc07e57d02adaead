"""A Celeriac worker leaves what other Celery applications have on the same Redis alone."""

import json

import pytest
import redis

from celeriac.ids import RunId
from celeriac.settings import load_settings
from celeriac_tasks.celery_app import UNACKED_KEY, make_app
from celeriac_tasks.publisher import Publisher
from tests.crash import agents
from tests.processes import Processes
from tests.servers import TestBroker
from tests.waiting import eventually

pytestmark = pytest.mark.processes

ANOTHER_APPLICATIONS = "unacked"
"""kombu's default, which every application has that says nothing of it."""

SWEEP_SECONDS = 30.0


@pytest.mark.parametrize("broker", ["redis"])
def test_a_message_that_another_application_holds_for_long_is_not_given_back(
    leased_broker: TestBroker, processes: Processes
) -> None:
    publisher = Publisher(make_app(load_settings(broker_url=leased_broker.url)))
    publisher.publish(RunId("nobody"), 0, leased_broker.queue)
    publisher.close()
    client = redis.Redis.from_url(leased_broker.url)
    message = client.lpop(leased_broker.queue)
    assert isinstance(message, bytes)
    for key, index in [
        (ANOTHER_APPLICATIONS, "unacked_index"),
        (UNACKED_KEY, f"{UNACKED_KEY}:index"),
    ]:
        # Taken decades ago, by a worker that has not acknowledged it yet.
        client.zadd(index, {"tag": 1})
        client.hset(key, "tag", json.dumps([json.loads(message), "", leased_broker.queue]))

    processes.start_worker(agents.__name__)

    eventually(
        lambda: client.hlen(UNACKED_KEY),
        until=lambda held: held == 0,
        deadline_seconds=SWEEP_SECONDS,
        what="Celeriac's own message given back, taken and done with",
    )
    assert client.hlen(ANOTHER_APPLICATIONS) == 1
    client.close()
