"""From a worker's death to its steps being published again, in a fraction of a second."""

import logging

from sqlalchemy import Connection

from celeriac.ids import RunId, WorkerId
from celeriac.settings import Settings
from celeriac_scheduler import figures
from celeriac_scheduler.one_by_one import one_by_one
from celeriac_scheduler.outlet import Outlet
from celeriac_storage import dispatch, verdicts
from celeriac_storage.database import Database
from celeriac_storage.verdicts import Suspect, Verdict

logger = logging.getLogger(__name__)

TICKS_BEFORE_VERDICT = 2
"""One tick may fall between a worker's losing its lifeline and taking it again."""


class Failover:
    """Watches lifelines and leases, tick by tick."""

    def __init__(self, database: Database, outlet: Outlet, settings: Settings) -> None:
        self._database = database
        self._outlet = outlet
        self._lease_seconds = settings.lease_seconds
        self._missing_ticks: dict[WorkerId, int] = {}

    def tick(self) -> None:
        """Look once; declare dead what has to be, and publish what it held."""
        with self._database.connect() as connection:
            suspects = verdicts.suspects(connection, self._lease_seconds)
        missing = {suspect.worker_id for suspect in suspects if suspect.is_lifeline_missing}
        self._missing_ticks = {
            worker_id: self._missing_ticks.get(worker_id, 0) + 1 for worker_id in missing
        }
        for suspect in suspects:
            if (verdict := self._verdict(suspect)) is not None:
                self._declare_dead(suspect, verdict)
        self.recover()
        self._outlet.pay()

    def recover(self) -> None:
        """Publish the running steps of workers that are dead or have left."""
        while True:
            with self._database.begin() as connection:
                due = verdicts.recover(connection)
            figures.FAILOVERS.inc(len(due))
            self._outlet.publish(due)
            if len(due) < dispatch.BATCH:
                return

    def take_back_overdue(self) -> None:
        """Publish the steps that hang in a live worker past their deadline, and those of children
        that were asked to end, whose workers may be gone as well."""
        with self._database.begin() as connection:
            due = verdicts.take_back_overdue(connection)
            children = verdicts.ending_children(connection)

        def take_back(connection: Connection, run_id: RunId) -> None:
            due.extend(verdicts.take_back(connection, run_id))

        try:
            one_by_one(self._database, children, take_back)
        finally:
            figures.FAILOVERS.inc(len(due))
            self._outlet.publish(due)

    def _declare_dead(self, suspect: Suspect, verdict: Verdict) -> None:
        with self._database.begin() as connection:
            moment = verdicts.declare_dead(connection, suspect.worker_id, verdict)
        if moment is not None:
            logger.warning("worker %s is dead (%s)", suspect.worker_id, verdict)
            figures.WORKER_DEATHS.labels(verdict).inc()
            # It may have taken messages off the broker that it never started on, and nobody knows
            # which.
            self._outlet.owe(moment)

    def _verdict(self, suspect: Suspect) -> Verdict | None:
        if (
            self._missing_ticks.get(suspect.worker_id, 0) >= TICKS_BEFORE_VERDICT
            and suspect.has_server_run_on
        ):
            return "lifeline"
        return "lease" if suspect.is_lease_over else None
