"""How a worker shows that it lives: a lifeline that breaks with it, and a lease that it renews."""

import logging
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg
from sqlalchemy import Connection

from celeriac.backoff import Backoff
from celeriac.errors import CeleriacError
from celeriac_storage import workers
from celeriac_storage.database import CONNECT_TIMEOUT_SECONDS, Database
from celeriac_storage.lifeline import Lifeline
from celeriac_storage.workers import WorkerInfo

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.03  # doubled with each failure, up to the time between two renewals


class Heartbeat:
    """A thread that holds the lifeline and renews the lease, three times per lease.

    It waits on the lifeline's own socket: when the server drops it, the row says so and the lock is
    taken again at once. After each renewal it calls `on_renewal`. When the worker has been declared
    dead, as after a long freeze, its steps are others' already, and it goes on as a new worker
    (`worker` changes).
    """

    def __init__(
        self,
        database: Database,
        lifeline: Lifeline,
        worker: WorkerInfo,
        lease_seconds: float,
        on_renewal: Callable[[Connection], None],
    ) -> None:
        self._database = database
        self._lifeline: Lifeline | None = lifeline
        self.worker = worker
        self._lease_seconds = lease_seconds
        self._on_renewal = on_renewal
        self._wake, self._sleeping = socket.socketpair()
        self._stopping = False
        self._thread = threading.Thread(target=self._live, name="celeriac-heartbeat", daemon=True)

    def trust_the_lease_alone(self) -> None:
        """Do without a lifeline. To be called before `start`."""
        self._lifeline = None

    def start(self) -> None:
        """Take the lifeline and register, then keep both. Raises `DatabaseUnavailable`."""
        has_lifeline = self._lifeline is not None and self._lifeline.hold(self.worker.worker_id)
        self._register(self.worker, has_lifeline=has_lifeline)
        self._thread.start()

    def stop(self) -> None:
        """Say goodbye and end the thread."""
        self._stopping = True
        self._wake.send(b".")
        self._thread.join(CONNECT_TIMEOUT_SECONDS + 1)
        self._wake.close()
        self._sleeping.close()
        with suppress(CeleriacError), self._database.connect() as connection:
            workers.stop(connection, self.worker.worker_id)
        if self._lifeline is not None:
            self._lifeline.close()
        self._database.close()

    def _register(self, worker: WorkerInfo, *, has_lifeline: bool) -> None:
        with self._database.begin() as connection:
            workers.register(
                connection,
                worker,
                lease_seconds=self._lease_seconds,
                has_lifeline=has_lifeline,
            )

    def _live(self) -> None:
        failures = 0
        while True:
            self._sleep(failures)
            if self._stopping:
                return
            # Each by itself: without a lifeline there is still the lease, and the other way round.
            # The renewal first: it tells the scheduler at once not to look for a lifeline that we
            # have just lost, while to take it again may last longer than two of its ticks.
            is_well = all([self._succeeds(self._renew), self._succeeds(self._keep_lifeline)])
            failures = 0 if is_well else failures + 1

    def _sleep(self, failures: int) -> None:
        """Wait for the next renewal, or until the lifeline breaks."""
        seconds = self._lease_seconds / 3
        if failures:
            seconds = Backoff(RETRY_SECONDS, 2, seconds, failures).delay_seconds(failures)
        watched = [self._sleeping.fileno()]
        if self._lifeline is not None:
            if not self._lifeline.is_broken:
                watched.append(self._lifeline.fileno())
            elif not failures:
                return
        select.select(watched, [], [], seconds)

    def _succeeds(self, act: Callable[[], bool]) -> bool:
        try:
            return act()
        except (CeleriacError, psycopg.Error) as error:
            logger.warning("heartbeat of %s: %s", self.worker.worker_id, error)
        except Exception:
            # The worker lives on without a lease, so others would take its steps: keep trying.
            logger.exception("heartbeat of %s failed", self.worker.worker_id)
        return False

    def _renew(self) -> bool:
        with self._database.connect() as connection:
            is_alive = workers.renew(
                connection,
                self.worker.worker_id,
                lease_seconds=self._lease_seconds,
                has_lifeline=self._lifeline is not None and not self._lifeline.is_broken,
            )
            if is_alive:
                self._on_renewal(connection)
        if not is_alive:
            self._be_born_again()  # the first renewal under the new name follows at once
        return is_alive

    def _keep_lifeline(self) -> bool:
        """Take a lifeline that broke again; false if the server has not yet missed our old session,
        which has the lock."""
        if self._lifeline is None or not self._lifeline.is_broken:
            return True
        return self._lifeline.hold(self.worker.worker_id) and self._renew()

    def _be_born_again(self) -> None:
        dead, successor = self.worker.worker_id, self.worker.successor()
        try:
            has_lifeline = self._lifeline is not None and self._lifeline.hold(successor.worker_id)
        except psycopg.Error as error:
            logger.warning("heartbeat of %s: no lifeline yet: %s", successor.worker_id, error)
            has_lifeline = False
        self._register(successor, has_lifeline=has_lifeline)
        # Not before it is registered: nobody would take a step from a worker that has no row.
        self.worker = successor
        logger.warning(
            "worker %s was declared dead while it was silent; its steps went to others, and it "
            "goes on as %s",
            dead,
            successor.worker_id,
        )
        self._database.drop_idle()  # its session carries the dead worker's name
