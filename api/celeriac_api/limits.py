"""How large a request may be, and how often somebody may ask."""

import logging
import threading
import time
from collections import OrderedDict
from contextlib import suppress

import redis
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celeriac.errors import RateLimited

logger = logging.getLogger(__name__)

TROUBLE_SECONDS = 5.0  # a Redis that was away is not asked again before
_TIMEOUT_SECONDS = 0.25
_MOST_BUCKETS = 10_000  # of this process; the least used is forgotten, and so full again

_TAKE = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1000000
local rate, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local bucket = redis.call('HMGET', KEYS[1], 'left', 'at')
local left, at = tonumber(bucket[1]) or burst, tonumber(bucket[2]) or now
left = math.min(burst, left + math.max(0, now - at) * rate)
local taken = 0
if left >= 1 then
    left = left - 1
    taken = 1
end
redis.call('HSET', KEYS[1], 'left', tostring(left), 'at', tostring(now))
redis.call('PEXPIRE', KEYS[1], math.ceil(burst / rate * 1000) + 1000)
return taken
"""
"""A token bucket by Redis's own clock: one command, so that two API processes never both take the
last."""


class BodyLimit:
    """Refuses a larger body: before it is read if the request says its size, else at that size."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = 0
        with suppress(ValueError):
            declared = int(Headers(scope=scope).get("content-length", "0"))
        read_bytes = 0

        async def receive_some() -> Message:
            nonlocal read_bytes
            if declared > self._most_bytes:
                raise self._too_large()
            message = await receive()
            read_bytes += len(message.get("body", b""))
            if read_bytes > self._most_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_some, send)

    def _too_large(self) -> HTTPException:
        # What is left of the body is not read, so the connection cannot be used for another.
        return HTTPException(
            413,
            f"a request body may have {self._most_bytes} bytes; store what is large elsewhere and "
            "send its address",
            {"Connection": "close"},
        )


class RateLimit:
    """Requests of one caller: `per_second` as a rule, `burst` at once.

    Counted in Redis for all API processes together; where the broker is no Redis, or while it is
    away, each process counts for itself. A request never fails because Redis is away.
    """

    def __init__(
        self,
        per_second: float,
        burst: int,
        broker_url: str | None,
        *,
        key_prefix: str = "celeriac:rate:",
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._key_prefix = key_prefix
        self._own = _OwnBuckets(per_second, burst)
        self._redis: redis.Redis | None = None
        if broker_url is not None and broker_url.startswith("redis"):
            self._redis = redis.Redis.from_url(
                broker_url,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
            )
            self._take = self._redis.register_script(_TAKE)
        self._trouble_until = 0.0

    def take(self, caller: str) -> None:
        """Count one request. Raises `RateLimited`."""
        if not self.is_taken(caller):
            raise RateLimited(
                f"{self._per_second:g} requests a second are allowed, and {self._burst} at once; "
                "wait a little"
            )

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()

    def is_taken(self, caller: str) -> bool:
        """Count one request; whether it is within the limit."""
        if self._redis is None or time.monotonic() < self._trouble_until:
            return self._own.is_taken(caller)
        try:
            taken = self._take(
                keys=[f"{self._key_prefix}{caller}"], args=[self._per_second, self._burst]
            )
        except (redis.RedisError, OSError) as error:
            self._trouble_until = time.monotonic() + TROUBLE_SECONDS
            logger.warning("Redis is away, so this process counts requests alone: %s", error)
            return self._own.is_taken(caller)
        return bool(taken)


class _OwnBuckets:
    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # left, at
        self._lock = threading.Lock()

    def is_taken(self, caller: str) -> bool:
        now = time.monotonic()
        with self._lock:
            left, at = self._buckets.pop(caller, (float(self._burst), now))
            left = min(self._burst, left + (now - at) * self._per_second)
            is_taken = left >= 1
            self._buckets[caller] = (left - 1 if is_taken else left, now)
            while len(self._buckets) > _MOST_BUCKETS:
                self._buckets.popitem(last=False)
        return is_taken
