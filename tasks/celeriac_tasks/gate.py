"""Lets a suspect step run alone in its process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Many steps pass together, or one step alone.

    A step that has killed its worker twice passes alone, so that a third death hurts nobody else.
    While it waits for its neighbours to finish, no new ones are let in.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._alone_wanted = 0
        self._is_alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone and not self._alone_wanted)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._changed:
            self._alone_wanted += 1
            try:
                self._changed.wait_for(lambda: not self._is_alone and self._inside == 0)
                self._is_alone = True
            finally:
                self._alone_wanted -= 1
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()
