"""Watching a run until it has ended or needs a person: when to look at it, and when to stop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from celeriac.client.ask import Ask
from celeriac.client.run import get_run, waits_for
from celeriac.ids import RunId
from celeriac.reports import TERMINAL_EVENTS, Event, Run, Wait
from celeriac.states import RunStatus

_TURNS = TERMINAL_EVENTS | {"run.needs_attention"}


@dataclass(slots=True)
class Vigil:
    """One watch. With `sees_each` each change is of interest, else only where it ends."""

    run_id: RunId
    timeout_seconds: float | None = None
    until_ended: bool = False
    sees_each: bool = False
    clock: Callable[[], float] = time.monotonic
    _last: Run | None = field(default=None, init=False)
    _began_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._began_at = self.clock()

    def position(self) -> Ask[Wait]:
        """Where its history is, before the first look: what comes later comes after that."""
        return waits_for(self.run_id)

    def look(self) -> Ask[Run]:
        return get_run(self.run_id)

    def heeds(self, event: Event) -> bool:
        """Whether the run is to be looked at after this event."""
        return self.sees_each or event.type in _TURNS

    def is_news(self, run: Run) -> bool:
        return run != self._last

    def see(self, run: Run) -> Run:
        self._last = run
        return run

    @property
    def is_over(self) -> bool:
        """Whether the run, as it was seen last, is what was waited for."""
        run = self._last
        if run is None:
            return False
        needs_somebody = run.status is RunStatus.NEEDS_ATTENTION and not self.until_ended
        return run.status.is_terminal or needs_somebody

    def seconds_left(self) -> float:
        """Raises `TimeoutError` if there are none."""
        if self.timeout_seconds is None:
            return float("inf")
        left = self._began_at + self.timeout_seconds - self.clock()
        if left <= 0:
            raise still(
                self.run_id, self._last.status if self._last else None, self.timeout_seconds
            )
        return left


def still(run_id: RunId, status: RunStatus | None, timeout_seconds: float) -> TimeoutError:
    """What is raised when the time is over before the run is."""
    return TimeoutError(
        f"run {run_id} is still {status or 'not known'} after {timeout_seconds:g} s; it goes on "
        "all the same"
    )
