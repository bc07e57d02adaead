"""Where due steps leave for the broker; what the broker does not take stays due."""

import logging
from collections.abc import Sequence
from datetime import datetime

from celeriac.errors import BrokerUnavailable
from celeriac_storage import dispatch
from celeriac_storage.database import Database
from celeriac_storage.dispatch import Due
from celeriac_tasks.publisher import Publisher

logger = logging.getLogger(__name__)


class Outlet:
    """Publishes batches of due steps."""

    def __init__(self, database: Database, publisher: Publisher) -> None:
        self._database = database
        self._publisher = publisher

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

    def republish_before(self, moment: datetime) -> None:
        """Publish all queued steps whose message was sent before `moment`."""
        while True:
            with self._database.connect() as connection:
                due = dispatch.take_published_before(connection, moment)
            self.publish(due)
            if len(due) < dispatch.BATCH:
                return
