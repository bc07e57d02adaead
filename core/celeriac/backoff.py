"""How long to wait before something that failed is tried again."""

import random
from collections.abc import Callable
from dataclasses import dataclass


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
