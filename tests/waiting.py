"""Waiting for a fact with a deadline, never for a while."""

import time
from collections.abc import Callable
from typing import TypeVar

Fact = TypeVar("Fact")

POLL_SECONDS = 0.02
PATIENCE_SECONDS = 60.0  # for what comes at once on an idle machine


def eventually(
    look: Callable[[], Fact],
    *,
    until: Callable[[Fact], object] = bool,
    deadline_seconds: float = PATIENCE_SECONDS,
    what: str = "what the test waits for",
) -> Fact:
    """Look again and again until `until` accepts what is seen, and return that.

    Fails after `deadline_seconds` with what was seen last. An exception out of `look` counts as a
    sight like any other, because the row or the server may not be there yet.
    """
    give_up_at = time.monotonic() + deadline_seconds
    while True:
        trouble: Exception | None = None
        try:
            seen = look()
            if until(seen):
                return seen
            sight = repr(seen)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shown at the deadline
            trouble, sight = error, f"{type(error).__name__}: {error}"
        if time.monotonic() > give_up_at:
            raise AssertionError(
                f"{what} was not so within {deadline_seconds:g} s; last seen: {sight}"
            ) from trouble
        time.sleep(POLL_SECONDS)
