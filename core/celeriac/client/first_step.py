"""Publishing a run's first step right after its commit, so that it starts a little sooner."""

import logging
import threading
from typing import TYPE_CHECKING

from celeriac.errors import BrokerUnavailable
from celeriac.ids import RunId
from celeriac.settings import Settings
from celeriac_storage import dispatch
from celeriac_storage.tenancy import Transactions

if TYPE_CHECKING:
    from celeriac_tasks.publisher import Publisher

logger = logging.getLogger(__name__)


class FirstStep:
    """Publishes to the settings' broker. Connects at first use; thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._publisher: Publisher | None = None
        self._making = threading.Lock()

    def publish(self, run_id: RunId, queue: str, transactions: Transactions) -> None:
        """A broker that is away is no error: the run is then marked for a scheduler to publish."""
        try:
            self._made().publish(run_id, 0, queue)
        except BrokerUnavailable as error:
            logger.warning("run %s is left to the scheduler: %s", run_id, error)
            with transactions.begin() as connection:
                dispatch.mark_unpublished(connection, run_id, 0)

    def prepare(self) -> None:
        """Make all that needs no broker, before anything is written: it may find a wrong URL."""
        self._made()

    def close(self) -> None:
        """May be used again, and then opens new connections."""
        with self._making:
            publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def _made(self) -> "Publisher":
        with self._making:
            if self._publisher is None:
                # Here: to import Celery takes a moment that reading a run need not wait.
                from celeriac_tasks.celery_app import make_app
                from celeriac_tasks.publisher import Publisher

                self._publisher = Publisher(make_app(self._settings))
            return self._publisher
