"""Whether a broker's URL means something to the libraries that are given it."""

import redis

from celeriac.errors import InvalidInput


def check_broker_url(url: str) -> None:
    """Raise `InvalidInput` for a URL that kombu or redis-py cannot take. Connects to nothing.

    Both raise whatever their parsers stumble over, with pieces of the URL in it.
    """
    # Here, because a client that only listens needs no kombu.
    from kombu import Connection

    try:
        with Connection(url) as connection:
            if is_redis_url(url):
                int(str(connection.virtual_host or "").strip("/") or 0)
    except Exception:  # noqa: BLE001 - a parser: whatever it stumbles over is the URL's fault
        raise _unusable() from None
    if is_redis_url(url):
        check_redis_url(url)


def check_redis_url(url: str) -> None:
    """Raise `InvalidInput` for a Redis URL that redis-py cannot take. Connects to nothing."""
    try:
        with redis.Redis.from_url(url) as client:
            client.connection_pool.make_connection()
    except Exception:  # noqa: BLE001 - a parser, as above
        raise _unusable() from None


def is_redis_url(url: str) -> bool:
    return url.startswith(("redis://", "rediss://"))


def _unusable() -> InvalidInput:
    return InvalidInput(
        "the broker URL cannot be used: its database is no number, or a parameter after its ? "
        "is unknown or has no such value. It has the form redis://host:port/number or "
        "amqp://user:password@host:port/vhost"
    )
