"""Where due steps leave for the broker; what the broker does not take stays due."""

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime

from celeriac.errors import BrokerUnavailable
from celeriac_storage import dispatch
from celeriac_storage.database import Database
from celeriac_storage.dispatch import Due
from celeriac_tasks.broker import Broker
from celeriac_tasks.publisher import Publisher

logger = logging.getLogger(__name__)

OWED_BATCH = 100  # some 30 ms, and more a second than any worker takes


class Outlet:
    """Publishes batches of due steps."""

    def __init__(self, database: Database, publisher: Publisher, broker: Broker) -> None:
        self._database = database
        self._publisher = publisher
        self._broker = broker
        self._owed_before: datetime | None = None

    def publish(self, due: Sequence[Due]) -> None:
        """Publish steps that were taken as published; put back what the broker does not take."""
        for number, step in enumerate(due):
            try:
                self._publisher.publish(step.run_id, step.step, step.queue)
            except BrokerUnavailable as error:
                logger.warning("%d steps stay due: %s", len(due) - number, error)
                with self._database.connect() as connection:
                    for left in due[number:]:
                        dispatch.mark_unpublished(connection, left.run_id, left.step)
                raise

    def shortages(self) -> Iterator[tuple[str, int]]:
        """Each queue that holds fewer messages than steps are queued, and how many are missing.

        A long queue is no alarm: as long as it holds a message for each queued row, nothing is
        lost.
        """
        with self._database.connect() as connection:
            queued = dispatch.queued_counts(connection)
        for queue, count in queued.items():
            missing = count - self._broker.queue_length(queue)
            if missing > 0:
                yield queue, missing

    def owe(self, moment: datetime) -> None:
        """Messages that were sent before `moment`, a verdict or a flush, may be lost: `pay`."""
        self._owed_before = moment

    def pay(self) -> None:
        """Publish the oldest of what is owed, as much as the broker is short of, a batch at a time:
        a death must not wait until the whole backlog of another one is published."""
        if self._owed_before is None:
            return
        is_all = True
        for queue, missing in self.shortages():
            limit = min(missing, OWED_BATCH)
            with self._database.connect() as connection:
                due = dispatch.take_published_before(connection, self._owed_before, queue, limit)
            self.publish(due)
            is_all = is_all and len(due) < OWED_BATCH
        if is_all:
            self._owed_before = None
