"""How long to wait before a failed model call is made again."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from celeriac.think_failure import ThinkFailure, ThinkFailureKind


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential waits with equal jitter: half of each is certain, the other half random.

    The certain half makes the waits grow from attempt to attempt; the random one keeps runs that
    failed together from coming back together. The attempt number is the caller's, from its stored
    row: a counter in memory would start again with each worker.
    """

    first_seconds: float
    factor: float
    cap_seconds: float
    max_attempts: int

    def delay_seconds(
        self,
        attempt: int,
        retry_after_seconds: float | None = None,
        random: Callable[[], float] = random.random,
    ) -> float:
        """The wait after attempt number `attempt` (from 1) failed.

        Between half of and the whole of `first_seconds * factor ** (attempt - 1)`, which is capped
        at `cap_seconds`; but never less than what the provider asked for, plus up to
        `first_seconds`, since it told the others the same. `random` gives numbers in [0, 1).
        """
        chance = random()
        wait = self._ceiling(attempt) * (0.5 + 0.5 * chance)
        if retry_after_seconds is None:
            return wait
        return max(wait, retry_after_seconds + self.first_seconds * chance)

    def is_exhausted(self, attempt: int) -> bool:
        """Whether attempt number `attempt` (from 1) was the last one."""
        return attempt >= self.max_attempts

    def _ceiling(self, attempt: int) -> float:
        try:
            return min(self.first_seconds * self.factor ** (attempt - 1), self.cap_seconds)
        except OverflowError:
            return self.cap_seconds


NEVER = Backoff(first_seconds=0.0, factor=1.0, cap_seconds=0.0, max_attempts=1)
"""For what asking again cannot cure."""

_PROVIDER_TROUBLE = Backoff(first_seconds=1.0, factor=2.0, cap_seconds=60.0, max_attempts=8)

DEFAULT_BACKOFF: dict[ThinkFailureKind, Backoff] = {
    # Most limits are per minute; ten attempts take about six, if the provider asks for no more.
    ThinkFailureKind.RATE_LIMITED: Backoff(2.0, 2.0, 120.0, max_attempts=10),
    ThinkFailureKind.SERVER_ERROR: _PROVIDER_TROUBLE,
    ThinkFailureKind.CONNECTION: _PROVIDER_TROUBLE,
    # Each attempt holds a slot for the whole timeout, and may be billed.
    ThinkFailureKind.TIMEOUT: Backoff(1.0, 2.0, 30.0, max_attempts=4),
    # Answered, and mostly billed: a third odd answer will not be the last.
    ThinkFailureKind.MALFORMED_RESPONSE: Backoff(0.5, 2.0, 10.0, max_attempts=3),
    ThinkFailureKind.EMPTY_RESPONSE: Backoff(0.5, 2.0, 10.0, max_attempts=3),
    # Not the provider's doing: another worker can ask at once.
    ThinkFailureKind.INTERRUPTED: Backoff(0.1, 2.0, 5.0, max_attempts=8),
}


def backoff_for(failure: ThinkFailure) -> Backoff:
    """The default policy after `failure`; `NEVER` if it is permanent.

    A provider may say that an error which looks permanent will pass (`x-should-retry`).
    """
    if not failure.is_transient:
        return NEVER
    return DEFAULT_BACKOFF.get(failure.kind, _PROVIDER_TROUBLE)
