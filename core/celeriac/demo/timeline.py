"""What happens to the runs, told while somebody waits for something."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from celeriac.client import Client
from celeriac.errors import CeleriacError
from celeriac.reports import Event, Step

LOOK_SECONDS = 0.05
LONGEST_WAIT_SECONDS = 90.0  # on a machine that does much else besides

Fact = TypeVar("Fact")


class Narrator(Protocol):
    """Whoever shows the demo to people. Each is called in the play's own thread."""

    def begin_act(self, title: str) -> None: ...

    def say(self, text: str) -> None:
        """What the demo does or sees."""

    def wait_for(self, what: str) -> None:
        """From now on it waits for something; a wait ends with the next one."""

    def tell(self, run_id: str, steps: Sequence[Step], events: Sequence[Event]) -> None:
        """What is new of a run."""


@dataclass(slots=True)
class _Followed:
    run_id: str
    steps: int = 0
    last_seq: int = 0
    is_over: bool = False


class Timeline:
    """Follows runs, and waits for facts without losing sight of them."""

    def __init__(self, client: Client, narrator: Narrator, give_up: threading.Event) -> None:
        """When `give_up` is set, whoever waits is given an error."""
        self._client = client
        self._narrator = narrator
        self.give_up = give_up
        self._followed: list[_Followed] = []

    def follow(self, run_id: str) -> None:
        """Tell from now on what happens to the run, until it has ended."""
        self._followed.append(_Followed(run_id))

    def until(self, fact: Callable[[], Fact | None], what: str) -> Fact:
        """Wait for a fact that is true, and return it.

        Raises `CeleriacError` if it takes too long, or if we are told to give up.
        """
        self._narrator.wait_for(what)
        give_up_at = time.monotonic() + LONGEST_WAIT_SECONDS
        while True:
            found = fact()
            self._look()
            if found:
                return found
            if self.give_up.is_set():
                raise CeleriacError(f"the demo was stopped while it waited for {what}")
            if time.monotonic() > give_up_at:
                raise CeleriacError(
                    f"the demo has waited {LONGEST_WAIT_SECONDS:g} s for {what}, in vain: what "
                    "the services wrote is in the logs of its data folder"
                )
            self.give_up.wait(LOOK_SECONDS)

    def _look(self) -> None:
        for followed in self._followed:
            if not followed.is_over:
                self._tell_news(followed)

    def _tell_news(self, followed: _Followed) -> None:
        events = list(self._client.events(followed.run_id, followed.last_seq))
        if not events:  # so no step was committed either: each leaves one
            return
        run = self._client.get(followed.run_id)
        self._narrator.tell(followed.run_id, run.steps[followed.steps :], events)
        followed.steps = len(run.steps)
        followed.last_seq = events[-1].seq
        followed.is_over = events[-1].is_terminal
