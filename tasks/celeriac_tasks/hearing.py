"""Hears that a run is to stop while this process waits for its model, and ends the wait.

A step learns at its commit what was asked of its run meanwhile. That is soon enough for a tool,
whose call is seen to its end in any case, but a model may think for minutes. The heartbeat comes
only every third of a lease. So one query looks at all runs of the process that wait for a model,
twice a second for as long as there are any: a tenth of a millisecond, on every broker, and whoever
asks needs none. A message through Redis would save the half second and could get lost, so this
query would be needed beside it.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from celeriac.errors import DatabaseUnavailable
from celeriac.ids import RunId
from celeriac_storage import requests
from celeriac_storage.database import Database

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


class Wait:
    """One wait for a model. `is_over`: the run is to stop, and the wait was ended for that."""

    def __init__(self, end: Callable[[], object]) -> None:
        self.is_over = False
        self._end = end

    def end(self) -> None:
        self.is_over = True
        self._end()


class Hearing:
    """A thread that looks at what is asked of runs. It starts with the first wait."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changed = threading.Condition()
        # Not by run: a step that lost its claim may still wait here beside its run's present one.
        self._waits: dict[Wait, RunId] = {}
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def waiting(self, run_id: RunId, end: Callable[[], object]) -> Iterator[Wait]:
        """Call `end`, once and in another thread, if the run is asked to stop within the block."""
        wait = Wait(end)
        with self._changed:
            self._waits[wait] = run_id
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._live, name="celeriac-hearing", daemon=True
                )
                self._thread.start()
            self._changed.notify()
        try:
            yield wait
        finally:
            with self._changed:
                self._waits.pop(wait, None)

    def close(self) -> None:
        """End the thread. Waits that go on are not ended any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(LOOK_SECONDS)

    def _live(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waits or self._is_closed)
                # Most answers come before the first look, and then there is none.
                self._changed.wait_for(lambda: self._is_closed, LOOK_SECONDS)
                if self._is_closed:
                    return
                run_ids = set(self._waits.values())
            if not run_ids:
                continue
            try:
                self._look(run_ids)
            except DatabaseUnavailable as error:
                logger.info("what is asked of %d runs is not known: %s", len(run_ids), error)
            except Exception:
                logger.exception("looking at what is asked of %d runs failed", len(run_ids))

    def _look(self, run_ids: Collection[RunId]) -> None:
        with self._database.connect() as connection:
            stopping = set(requests.asked_to_stop(connection, run_ids))
        with self._changed:
            waits = [wait for wait, run_id in self._waits.items() if run_id in stopping]
            for wait in waits:
                del self._waits[wait]
        for wait in waits:
            wait.end()
