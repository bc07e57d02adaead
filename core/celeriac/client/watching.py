"""Looking at a run again and again while it goes on, through an outage of the database too."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from celeriac.client.vigil import still
from celeriac.errors import DatabaseUnavailable
from celeriac.ids import RunId, TenantId
from celeriac.reports import Event, Run
from celeriac.states import RunStatus
from celeriac_storage import reading, run_report
from celeriac_storage.database import Database
from celeriac_storage.ownership import require_tenant
from celeriac_storage.reading import Position
from celeriac_tasks.bell import Ear, listening

FIRST_PAUSE_SECONDS = 0.02  # between two looks; grows while nothing happens
LAST_PAUSE_SECONDS = 0.25  # and is cut short when Redis tells that there is something new
OUTAGE_SECONDS = 30.0  # of a database that was there before: a restart is waited out

Answer = TypeVar("Answer")


class Watching:
    """Reads runs. `ready` returns the database once its schema is known to be right."""

    def __init__(
        self, ready: Callable[[], Database], broker_url: str | None, tenant_id: TenantId
    ) -> None:
        self._ready = ready
        self._broker_url = broker_url
        self._tenant_id = tenant_id
        self._has_seen_database = False

    def check(self, run_id: RunId) -> None:
        """Raise `UnknownRun` unless the run is the tenant's. That never changes."""
        self._look(partial(require_tenant, tenant_id=self._tenant_id, run_id=run_id))

    def run(self, run_id: RunId) -> Run:
        return self._look(partial(run_report.read_run, run_id=run_id), is_snapshot=True)

    def position(self, run_id: RunId) -> Position:
        return self._look(partial(reading.read_position, run_id=run_id))

    def positions(
        self, run_id: RunId, *, timeout_seconds: float | None = None, until_ended: bool = False
    ) -> Iterator[Position]:
        """Where the run stands, and again after each change, until it has ended.

        Unless `until_ended`, a need for attention is an end as well. Raises `TimeoutError`.
        """
        with listening(self._broker_url, run_id) as ear:
            yield from self._positions(run_id, ear, timeout_seconds, until_ended)

    def _positions(
        self, run_id: RunId, ear: Ear, timeout_seconds: float | None, until_ended: bool
    ) -> Iterator[Position]:
        give_up_at = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        last: Position | None = None
        pause = FIRST_PAUSE_SECONDS
        while True:
            position = self.position(run_id)
            if position != last:
                yield position
                last, pause = position, FIRST_PAUSE_SECONDS
            if position.status.is_terminal:
                return
            if position.status is RunStatus.NEEDS_ATTENTION and not until_ended:
                return
            if give_up_at is not None:
                left = give_up_at - time.monotonic()
                if left <= 0:
                    assert timeout_seconds is not None
                    raise still(run_id, position.status, timeout_seconds)
                pause = min(pause, left)
            ear.wait(pause)
            pause = min(pause * 1.5, LAST_PAUSE_SECONDS)

    def events(self, run_id: RunId, after: int, *, follow: bool) -> Iterator[Event]:
        """The events after `after`; with `follow` also those to come, up to the terminal one."""
        for position in self.positions(run_id, until_ended=True):
            while after < position.last_event_seq:
                events = self._look(partial(reading.list_events, run_id=run_id, after=after))
                if not events:
                    break  # pruned
                yield from events
                after = events[-1].seq
            if not follow:
                return

    def _look(self, read: Callable[[Connection], Answer], *, is_snapshot: bool = False) -> Answer:
        give_up_at: float | None = None
        while True:
            try:
                database = self._ready()
                with database.begin() if is_snapshot else database.connect() as connection:
                    answer = read(connection)
                self._has_seen_database = True
                return answer
            except DatabaseUnavailable:
                now = time.monotonic()
                give_up_at = give_up_at or now + OUTAGE_SECONDS
                if not self._has_seen_database or now > give_up_at:
                    raise  # a wrong address shows at once
                time.sleep(LAST_PAUSE_SECONDS)
