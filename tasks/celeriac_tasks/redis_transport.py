"""kombu's Redis transport, except that a channel keeps its client, and hears of a lost connection.

kombu makes a new Redis client for each command, three times for each message that is received,
acknowledged and answered by the next one. A client is only a front of the channel's connection
pool, which may be used by all threads; making it took a tenth of a worker's CPU time.

What a consumer waits on must not be mended below it. When the connection of its broadcasts ended
and the server was back already (a worker that was frozen while Redis restarted), redis-py connected
anew within the read and waited there for a broadcast, with the whole event loop, for ever.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu.transport import redis


class Channel(redis.Channel):
    """A channel with one client for as long as it has the same connection pool."""

    _kept: Any = None

    def _connparams(self, asynchronous: bool = False) -> Any:
        parameters = super()._connparams(asynchronous=asynchronous)  # type: ignore[misc]  # not in its stub
        if asynchronous:  # of the connections that the event loop waits on
            parameters["retry_on_timeout"] = False
        return parameters

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        if client is None:
            client = self._kept
            if client is None or client.connection_pool is not self.pool:  # a lost pool is remade
                client = self._kept = self._create_client()  # type: ignore[attr-defined]  # not in its stub
        yield client


class Transport(redis.Transport):
    """What `broker_transport` names."""

    Channel = Channel
