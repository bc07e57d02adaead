"""Hears the bells of many runs on one connection to Redis, and reads their models' text on another.

A hint, as in `celeriac_tasks.bell`: what is missed while Redis is away is looked up in Postgres.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import redis.asyncio
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from celeriac.ids import RunId
from celeriac_tasks.bell import channel
from celeriac_tasks.text_stream import Piece, stream_key, text_channel

PING_SECONDS = 5.0  # a connection that is silent for three of these is lost
_OWN_CHANNEL = "celeriac:api"  # so that there is always one to listen on
_CONNECTION: dict[str, Any] = {
    "socket_timeout": 5,
    "socket_connect_timeout": 5,
    "retry": Retry(NoBackoff(), 0),  # a new connection is subscribed anew, by us
}
PIECES_PER_READ = 1000  # of one run


class Ear:
    """Listens for the runs it is told to. `on_events` and `on_text` are called with the run, also
    when it begins to listen for a run: what was told before that, nobody heard."""

    def __init__(
        self,
        broker_url: str,
        on_events: Callable[[RunId], None],
        on_text: Callable[[RunId], None],
    ) -> None:
        self.is_deaf = True
        self._redis = redis.asyncio.Redis.from_url(broker_url, **_CONNECTION)
        self._on_events = on_events
        self._on_text = on_text
        self._wanted: set[RunId] = set()
        self._is_changed = asyncio.Event()

    def listen_for(self, run_id: RunId) -> None:
        self._wanted.add(run_id)
        self._is_changed.set()

    def forget(self, run_id: RunId) -> None:
        self._wanted.discard(run_id)
        self._is_changed.set()

    async def listen(self) -> None:
        """Listen until the connection is lost. Raises `RedisError` or `OSError` then."""
        try:
            async with self._redis.pubsub() as subscription:
                await subscription.subscribe(_OWN_CHANNEL)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._subscribe(subscription))
                    tasks.create_task(self._hear(subscription))
                    tasks.create_task(_ping(subscription))
        except* (RedisError, OSError) as errors:
            raise ConnectionError(
                f"readers are not woken, and look for themselves: {errors.exceptions[0]}"
            ) from errors
        finally:
            self.is_deaf = True

    async def read_text(
        self, positions: Mapping[RunId, str]
    ) -> dict[RunId, tuple[str, list[Piece]]]:
        """The pieces of each run after the place in its stream that is given ("0" is the begin),
        and the place after them. Raises `RedisError`."""
        keys = {stream_key(run_id): run_id for run_id in positions}
        places: Any = {key: positions[run_id] for key, run_id in keys.items()}
        streams: Any = await self._redis.xread(places, count=PIECES_PER_READ)
        return {
            keys[key.decode()]: (
                entries[-1][0].decode(),
                [Piece.from_entry(entry) for _, entry in entries],
            )
            for key, entries in streams
        }

    async def close(self) -> None:
        await self._redis.aclose()

    async def _subscribe(self, subscription: PubSub) -> None:
        subscribed: set[RunId] = set()
        while True:
            self._is_changed.clear()
            wanted = set(self._wanted)
            if new := wanted - subscribed:
                await subscription.subscribe(*map(channel, new), *map(text_channel, new))
            if old := subscribed - wanted:
                await subscription.unsubscribe(*map(channel, old), *map(text_channel, old))
            subscribed = wanted
            await self._is_changed.wait()

    async def _hear(self, subscription: PubSub) -> None:
        while True:
            message = await subscription.get_message(timeout=3 * PING_SECONDS)
            if message is None:
                raise TimeoutError("Redis has been silent, even when asked")
            self.is_deaf = False
            if message["type"] not in ("message", "subscribe"):
                continue
            kind, _, run_id = message["channel"].decode().removeprefix("celeriac:").partition(":")
            if kind == "run":
                self._on_events(RunId(run_id))
            elif kind == "text":
                self._on_text(RunId(run_id))


async def _ping(subscription: PubSub) -> None:
    while True:
        await asyncio.sleep(PING_SECONDS)
        await subscription.ping()
