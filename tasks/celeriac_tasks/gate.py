"""Lets a suspect step run alone in its process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

ALONE_PATIENCE_SECONDS = 30.0
"""After that the step stays queued, and comes back after its backoff, perhaps to another worker."""

SHARED_PATIENCE_SECONDS = 60.0
"""So long a step waits while suspects come one after another: its message may be for others."""


class Gate:
    """Many steps pass together, or one step alone.

    A step that has killed its worker twice passes alone, so that a third death hurts nobody else.
    While it waits for its neighbours to finish, no new ones are let in; but not for long, since one
    of them may hang.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone_wanted = 0
        self._is_alone = False

    @contextmanager
    def shared(self, patience_seconds: float = SHARED_PATIENCE_SECONDS) -> Iterator[bool]:
        """Whether the step is inside for the length of the block."""
        with self._changed:
            is_inside = self._changed.wait_for(
                lambda: not self._is_alone and not self._alone_wanted, patience_seconds
            )
            self._inside += is_inside
        try:
            yield is_inside
        finally:
            if is_inside:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()

    @contextmanager
    def alone(self, patience_seconds: float = ALONE_PATIENCE_SECONDS) -> Iterator[bool]:
        """Whether nothing else is inside for the length of the block."""
        with self._changed:
            self._alone_wanted += 1
            try:
                is_alone = self._changed.wait_for(
                    lambda: not self._is_alone and self._inside == 0, patience_seconds
                )
                self._is_alone = self._is_alone or is_alone
            finally:
                self._alone_wanted -= 1
                self._changed.notify_all()
        try:
            yield is_alone
        finally:
            if is_alone:
                with self._changed:
                    self._is_alone = False
                    self._changed.notify_all()
