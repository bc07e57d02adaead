"""Steps that are queued in Postgres but perhaps no longer on the broker."""

import logging

from sqlalchemy.exc import DBAPIError

from celeriac.settings import Settings
from celeriac.testpoints import reach
from celeriac_scheduler import figures
from celeriac_scheduler.outlet import Outlet
from celeriac_storage import budgets, dispatch, threads, timers, waking, workers
from celeriac_storage.database import Database
from celeriac_tasks.broker import Broker

logger = logging.getLogger(__name__)


class Redispatch:
    """Publishes what nobody published, what got lost, and what has waited long enough."""

    def __init__(
        self, database: Database, outlet: Outlet, broker: Broker, settings: Settings
    ) -> None:
        self._database = database
        self._outlet = outlet
        self._broker = broker
        self._first_seconds = settings.redispatch_seconds
        self._cap_seconds = settings.redispatch_cap_seconds
        self._identity: str | None = None

    def publish_new(self) -> None:
        """Publish the steps that nobody has published yet, and the timers that are over."""
        with self._database.connect() as connection:
            due = dispatch.take_unpublished(connection)
        self._outlet.publish(due)
        with self._database.connect() as connection:
            due = waking.take_due_timers(connection)
        self._outlet.publish(due)
        self._fire_timers()

    def _fire_timers(self) -> None:
        """Fire a batch of timers. More of them are left to the next time: failover comes first."""
        with self._database.begin() as connection:
            due = timers.fire_due(connection)
            reach("timers.before_commit")
        self._outlet.publish(due)
        with self._database.begin() as connection:
            due = timers.fire_entries(connection)
            reach("timers.before_commit")
        self._outlet.publish(due)
        with self._database.begin() as connection:
            due = timers.begin_delayed(connection)
            reach("timers.before_commit")
        self._outlet.publish(due)

    def publish_overdue(self) -> None:
        """Publish again what is past its backoff, but never more than the broker is short of."""
        shortages = dict(self._outlet.shortages())
        figures.note_deficits(shortages)
        for queue, missing in shortages.items():
            with self._database.connect() as connection:
                due = dispatch.take_overdue(
                    connection,
                    queue,
                    min(missing, dispatch.BATCH),
                    self._first_seconds,
                    self._cap_seconds,
                )
            if due:
                logger.info("publishing %d steps of queue %s again", len(due), queue)
                figures.PUBLISHED_AGAIN.inc(len(due))
            self._outlet.publish(due)

    def watch_broker(self) -> None:
        """If Redis was flushed or restarted, all that was published so far may be lost. So it may
        if nobody has looked before: whatever took the leader along may have flushed it."""
        identity = self._broker.identity()
        if identity == self._identity:
            return
        if self._identity is not None:
            logger.warning("the broker was flushed or restarted: publishing all queued steps")
            figures.BROKER_LOSSES.inc()
        with self._database.connect() as connection:
            self._outlet.owe(dispatch.now(connection))
        self._identity = identity

    def mind_workers(self) -> None:
        """Pause queued runs that no live worker could take, and wake those that one can."""
        with self._database.begin() as connection:
            workers.wake_waiting(connection)
            waking.park_without_worker(connection)
        for _ in range(dispatch.BATCH):
            with self._database.begin() as connection:
                if not waking.cancel_without_worker(connection):
                    break

    def mind_budgets(self) -> None:
        """Queue the runs for which their budgets have room again."""
        with self._database.connect() as connection:
            budgets.release_ended(connection)
            due = budgets.wake_for_room(connection)
        self._outlet.publish(due)

    def mind_threads(self) -> None:
        """Wake threads in which a run waits for nobody."""
        with self._database.connect() as connection:
            idle = threads.idle_threads(connection)
        for tenant_id, thread_id in idle:
            try:
                with self._database.begin() as connection:
                    threads.wake_next_of_thread(connection, tenant_id, thread_id)
            except DBAPIError as error:  # somebody holds a row of it; the others shall not wait
                logger.info("thread %s is woken later: %s", thread_id, error)
