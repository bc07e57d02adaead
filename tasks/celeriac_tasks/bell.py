"""Waking the readers of a run through Redis, soon after something of it has committed.

A hint like all that crosses the broker: it carries nothing, may come twice, late or never, and a
reader looks at Postgres now and then without it. (A NOTIFY in the step's own commit would hold a
lock of the whole cluster across its fsync.)
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Protocol, Self

import redis

from celeriac.errors import InvalidInput
from celeriac.ids import RunId
from celeriac_tasks.broker_url import check_redis_url, is_redis_url

logger = logging.getLogger(__name__)

GATHER_SECONDS = 0.005
"""After a ring, what is rung within this time goes out together: no command for each of hundreds of
commits, and no wait for a single one."""
TROUBLE_SECONDS = 1.0
_TIMEOUTS: dict[str, Any] = {"socket_timeout": 5, "socket_connect_timeout": 5}


class Bell:
    """Rings for the readers of runs, in a thread of its own: no step waits for it. The thread
    begins with the first ring, and anew in a forked child."""

    def __init__(self, broker_url: str) -> None:
        self._redis = redis.Redis.from_url(broker_url, **_TIMEOUTS)
        self._rung: SimpleQueue[RunId | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    @classmethod
    def of_broker(cls, broker_url: str | None) -> Self | None:
        """One on this broker; none if it is no Redis, or its URL cannot be used: whoever needs the
        broker will say so."""
        if broker_url is None or not is_redis_url(broker_url):
            return None
        try:
            check_redis_url(broker_url)
        except InvalidInput:
            return None
        return cls(broker_url)

    def ring(self, run_id: RunId) -> None:
        """Tell the readers of this run that there is something new."""
        self._rung.put(run_id)
        if self._thread is None or not self._thread.is_alive():
            self._start()

    def close(self) -> None:
        """Ring for what is left, and end the thread."""
        if self._thread is not None and self._thread.is_alive():
            self._rung.put(None)
            self._thread.join(TROUBLE_SECONDS)
        self._redis.close()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._live, name="celeriac-bell", daemon=True
                )
                self._thread.start()

    def _live(self) -> None:
        is_over = False
        while not is_over:
            rung = {self._rung.get()}
            try:
                while True:
                    rung.add(self._rung.get_nowait())
            except Empty:
                pass
            is_over = None in rung
            try:
                with self._redis.pipeline(transaction=False) as pipeline:
                    for run_id in rung:
                        if run_id is not None:
                            pipeline.publish(channel(run_id), "")
                    pipeline.execute()
                time.sleep(GATHER_SECONDS)
            except redis.RedisError as error:
                logger.info("readers are not woken, and look for themselves: %s", error)
                time.sleep(TROUBLE_SECONDS)


class Ear(Protocol):
    """Waits for a bell."""

    def wait(self, seconds: float) -> None:
        """Returns when the bell has rung since the last call, or after so many seconds."""
        ...


@contextmanager
def listening(broker_url: str | None, run_id: RunId) -> Iterator[Ear]:
    """An ear for this run's bell. Without a Redis, it only waits.

    What is rung from now on is heard, so look at the run after this, never before. Raises
    `InvalidInput` for a URL that cannot be used.
    """
    if broker_url is None or not is_redis_url(broker_url):
        yield _Deaf()
        return
    check_redis_url(broker_url)
    with redis.Redis.from_url(broker_url, **_TIMEOUTS) as client:
        yield _Listening(client, run_id)


class _Deaf:
    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


class _Listening:
    def __init__(self, client: redis.Redis, run_id: RunId) -> None:
        self._subscription: Any = client.pubsub(  # type: ignore[no-untyped-call]  # redis-py's
            ignore_subscribe_messages=True
        )
        self._channel = channel(run_id)
        self._is_subscribed = self._subscribe()

    def wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        try:
            if not self._is_subscribed:
                self._is_subscribed = self._subscribe()
            while (left := until - time.monotonic()) > 0:
                if self._subscription.get_message(timeout=left) is not None:
                    return
        except redis.RedisError:
            self._is_subscribed = False
            time.sleep(max(0.0, until - time.monotonic()))

    def _subscribe(self) -> bool:
        try:
            self._subscription.subscribe(self._channel)
        except redis.RedisError:
            return False
        return True


def channel(run_id: RunId) -> str:
    """Where it is told that something of the run has committed."""
    return f"celeriac:run:{run_id}"
