"""Prunes old runs as the settings say, beside the scheduler's other duties."""

import logging
import threading
from collections.abc import Callable

import psycopg
from sqlalchemy.exc import DBAPIError

from celeriac.errors import CeleriacError
from celeriac.settings import Settings
from celeriac.states import RunStatus
from celeriac_storage import pruning
from celeriac_storage.database import Database
from celeriac_storage.pruning import Policy, Pruned

logger = logging.getLogger(__name__)

APPLICATION_NAME = "celeriac-scheduler-retention"
BATCH_RUNS = 20
BETWEEN_BATCHES_SECONDS = 0.5
BETWEEN_PASSES_SECONDS = 60.0
NOT_LEADING_SECONDS = 2.0
TROUBLE_SECONDS = 60.0
LOCK_TIMEOUT_MILLISECONDS = 1000


class Retention:
    """One thread, with a session of its own: the runs of a batch may be long, and the tick that
    looks for dead workers must not wait for their rows to be deleted.

    Every scheduler may prune, since no run is pruned twice; only the leading one does.
    """

    def __init__(self, settings: Settings, leads: Callable[[], bool]) -> None:
        url = settings.retention_database_url or settings.database_url
        assert url is not None
        assert settings.retention_days is not None
        self._policy = Policy(
            settings.retention_days, [RunStatus(each) for each in settings.retention_status_names]
        )
        self._leads = leads
        self._database = Database(
            url.get_secret_value(),
            application_name=lambda: APPLICATION_NAME,
            connections=1,
            lock_timeout_milliseconds=LOCK_TIMEOUT_MILLISECONDS,
        )
        self._so_far = Pruned()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the batch in progress."""
        self._stopping.set()
        self._thread.join()
        self._database.close()

    def prune_some(self) -> bool:
        """Prune the next batch of this pass; whether there may be more."""
        with self._database.begin() as connection:
            is_more = pruning.prune_batch(connection, self._policy, self._so_far, batch=BATCH_RUNS)
        if not is_more:
            if self._so_far.runs:
                logger.info("%s old runs pruned", self._so_far.runs)
            self._so_far = Pruned()
            with self._database.begin() as connection:
                pruning.sweep_artifacts(connection)
            with self._database.begin() as connection:
                pruning.sweep_vectors(connection, self._policy)
        return is_more

    def _run(self) -> None:
        wait = 0.0
        while not self._stopping.wait(wait):
            try:
                if not self._leads():
                    wait = NOT_LEADING_SECONDS
                else:
                    wait = BETWEEN_BATCHES_SECONDS if self.prune_some() else BETWEEN_PASSES_SECONDS
            except Exception as error:
                # Above all a login that is no member of celeriac_retention. A bug must not end
                # this silently either.
                is_known = isinstance(error, CeleriacError | DBAPIError | psycopg.Error)
                logger.warning(
                    "old runs are not pruned: %s; trying again", error, exc_info=not is_known
                )
                wait = TROUBLE_SECONDS
