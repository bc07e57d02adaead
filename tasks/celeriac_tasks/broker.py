"""What the broker can be asked: how long a queue is, and whether it lost everything."""

import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from celery import Celery

from celeriac.errors import BrokerUnavailable
from celeriac_tasks.celery_app import make_queue
from celeriac_tasks.publisher import BROKER_ERRORS, broker_unavailable

SENTINEL_KEY = "celeriac:sentinel"
BACKLOG_SECONDS = 0.02
"""How long the answer to "does anything wait?" is good for; asking costs a round trip."""


class Broker:
    """Asks Redis or RabbitMQ. Raises `BrokerUnavailable`; belongs to one process, any thread."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connections: Any = app.pool  # its stub takes it for a pool of producers

    def queue_length(self, queue: str) -> int:
        """Messages that wait in the queue, not counting those that workers hold already."""
        try:
            with self._connections.acquire(block=True, timeout=5) as connection:
                channel = connection.default_channel
                if connection.transport.driver_type == "redis":
                    return int(channel.client.llen(queue))
                declared: Any = make_queue(queue).bind(channel).queue_declare()
                return int(declared.message_count)
        except BROKER_ERRORS as error:
            raise broker_unavailable(self._app, error) from error

    def identity(self) -> str | None:
        """Changes when Redis has forgotten what it held: a new process, or a lost sentinel.

        None for a broker that cannot tell; there only the rows' age shows what was lost.
        """
        try:
            with self._connections.acquire(block=True, timeout=5) as connection:
                if connection.transport.driver_type != "redis":
                    return None
                client: Any = connection.default_channel.client
                sentinel = client.get(SENTINEL_KEY)
                if sentinel is None:
                    client.set(SENTINEL_KEY, uuid4().hex, nx=True)
                    sentinel = client.get(SENTINEL_KEY)
                server = client.info("server")["run_id"]
                return f"{server}:{sentinel!r}"
        except BROKER_ERRORS as error:
            raise broker_unavailable(self._app, error) from error

    def eviction_policy(self) -> str | None:
        """What Redis does when its memory is full; anything but `noeviction` loses messages.

        None for a broker that has no such setting.
        """
        try:
            with self._connections.acquire(block=True, timeout=5) as connection:
                if connection.transport.driver_type != "redis":
                    return None
                client: Any = connection.default_channel.client
                return str(client.info("memory")["maxmemory_policy"])
        except BROKER_ERRORS as error:
            raise broker_unavailable(self._app, error) from error


class Backlog:
    """Whether any message waits in the queues of this process, asked now and then."""

    def __init__(self, broker: Broker, queues: Sequence[str]) -> None:
        self._broker = broker
        self._queues = queues
        self._asked_at = 0.0
        self._is_empty = False

    def is_empty(self) -> bool:
        """Also if the broker cannot be asked: nobody gets a message from there just now."""
        now = time.monotonic()
        if now - self._asked_at > BACKLOG_SECONDS:
            self._asked_at = now  # first: other threads need not ask as well
            try:
                self._is_empty = not any(self._broker.queue_length(queue) for queue in self._queues)
            except BrokerUnavailable:
                self._is_empty = True
        return self._is_empty
