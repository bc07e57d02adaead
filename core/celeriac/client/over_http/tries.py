"""Whether a request is sent again, and when: bounded, with backoff, and as the service asks."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from celeriac.backoff import Backoff
from celeriac.client.over_http.problems import URN, error_of
from celeriac.client.over_http.request import Request
from celeriac.errors import CeleriacError, Unavailable

logger = logging.getLogger(__name__)

BACKOFF = Backoff(first_seconds=0.1, factor=2.0, cap_seconds=3.0, max_attempts=1000)
_LATER = frozenset({429, 502, 503, 504})
_STILL_AT_WORK = f"{URN}key-in-use"
"""409: the first try of this very request has not ended; we have stopped to listen to it."""


class Tries:
    """The tries of one request, or of one stream that is gone on with.

    The service may fail to answer for `patience_seconds` in a row, as over a restart.
    """

    def __init__(
        self,
        request: Request,
        service: str,
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._service = service  # its address
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._give_up_at: float | None = None
        self._failures = 0
        self._has_heard = False  # anything on the present connection

    def succeeded(self) -> None:
        """The service says something: its next failure is the first one again."""
        self._give_up_at, self._failures = None, 0
        self._has_heard = True

    def ended(self) -> float:
        """A stream ended as it should, to be gone on with on a new connection: how long to wait, in
        seconds. Raises `Unavailable` if the streams end again and again with nothing in them."""
        if not self._has_heard:
            return self.lost(EOFError("the stream ends at once"))
        self._has_heard = False
        return BACKOFF.delay_seconds(1)

    def lost(self, error: Exception) -> float:
        """The connection failed, or ended too early: how long to wait before the next try, in
        seconds. Raises `Unavailable` after the last one."""
        self._has_heard = False
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        away = f"{self._request}: {self._service} does not answer ({why})"
        lost = f". {self._request.if_lost}" if self._request.if_lost else ""
        return self._pause(None, away, Unavailable(away + lost))

    def refused(self, status: int, told: object, retry_after: str | None) -> float:
        """It was answered by an error: how long to wait before the next try, in seconds. Raises
        that error if to ask again is no use, or after the last try."""
        is_still_at_work = isinstance(told, dict) and told.get("type") == _STILL_AT_WORK
        error = error_of(self._request, status, told)
        if status not in _LATER and not is_still_at_work:
            raise error
        return self._pause(_seconds(retry_after), f"{self._request}: {error}", error)

    def _pause(self, asked_seconds: float | None, why: str, error: CeleriacError) -> float:
        now = self._clock()
        if self._give_up_at is None:
            self._give_up_at = now + self._patience_seconds
        self._failures += 1
        pause = BACKOFF.delay_seconds(self._failures, asked_seconds)
        if now + pause > self._give_up_at:
            raise error
        if self._failures == 1:
            logger.warning("%s; trying again for %g s", why, self._patience_seconds)
        return pause


def _seconds(retry_after: str | None) -> float | None:
    """What `Retry-After` asks for: seconds, or a date (RFC 9110, 10.2.3)."""
    if retry_after is None:
        return None
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None
