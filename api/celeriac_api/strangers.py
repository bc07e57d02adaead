"""Requests with a token that opens nothing: held back by address, and counted there.

Whoever guesses tokens would have to be lucky beyond reason; what he could do is to keep the
database busy and to fill a table. So one address gets few looks at the database and one row, and
all of them together a write a second. The token itself is kept nowhere.
"""

import hashlib
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from ipaddress import IPv6Address, ip_address, ip_network

from sqlalchemy import Connection

from celeriac.errors import CeleriacError, RateLimited
from celeriac_api.limits import RateLimit
from celeriac_api.metrics import REFUSED_TOKENS
from celeriac_storage import strangers

logger = logging.getLogger(__name__)

LOOKS_PER_SECOND = 5.0
BURST_LOOKS = 100
"""Of one address with tokens that this process has not seen to be good: an office behind one
address comes in, a guesser does not get far."""

MOST_KNOWN = 10_000  # tokens that were good, 32 bytes each; the least used is forgotten
MOST_HELD = 1_000  # addresses that are not written yet
WRITE_SECONDS = 1.0


class Strangers:
    """Knows which tokens were good lately, and who came with others."""

    def __init__(
        self, begin: Callable[[], AbstractContextManager[Connection]], broker_url: str | None
    ) -> None:
        self._begin = begin
        self._limit = RateLimit(
            LOOKS_PER_SECOND, BURST_LOOKS, broker_url, key_prefix="celeriac:rate-address:"
        )
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._write_at = 0.0
        self._lock = threading.Lock()

    def admit(self, token: str, peer: str) -> None:
        """Let a token be looked at: one that was good lately always, others so many an address.

        Raises `RateLimited`.
        """
        with self._lock:
            if (digest := _digest(token)) in self._known:
                self._known.move_to_end(digest)
                return
        if not self._limit.is_taken(_network(peer)):
            self._count(peer, "too many")
            raise RateLimited(
                "too many tokens that open nothing came from this address; wait a little"
            )

    def note_good(self, token: str) -> None:
        with self._lock:
            self._known[_digest(token)] = None
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)

    def note_refused(self, token: str, peer: str) -> None:
        """The token opens nothing, or nothing any more."""
        with self._lock:
            self._known.pop(_digest(token), None)
        self._count(peer, "no good")

    def close(self) -> None:
        """Write what is held."""
        self._limit.close()
        with self._lock:
            self._write_at = 0.0
        self._write()

    def _count(self, peer: str, why: str) -> None:
        REFUSED_TOKENS.labels(why).inc()
        address = _network(peer)
        with self._lock:
            if address not in self._held and len(self._held) >= MOST_HELD:
                address = strangers.OTHERS
            self._held[address] += 1
        self._write()

    def _write(self) -> None:
        with self._lock:
            if time.monotonic() < self._write_at or not self._held:
                return
            self._write_at = time.monotonic() + WRITE_SECONDS
            held, self._held = self._held, Counter()
        try:
            with self._begin() as connection:
                strangers.note(connection, held)
        except CeleriacError as error:
            logger.warning("%d refused tokens are not counted: %s", held.total(), error)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _network(peer: str) -> str:
    """The address; of the newer kind the network, since anybody has a whole one of those."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ip_network((address, 64), strict=False))
    return str(address)
