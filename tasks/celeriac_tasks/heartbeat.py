"""How a worker shows that it lives: a lifeline that breaks with it, and a lease that it renews."""

import logging
import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

import psycopg
from sqlalchemy import Connection

from celeriac.errors import CeleriacError
from celeriac_storage import workers
from celeriac_storage.database import CONNECT_TIMEOUT_SECONDS, Database
from celeriac_storage.lifeline import Lifeline
from celeriac_storage.workers import WorkerInfo

logger = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.2


class Heartbeat:
    """A thread that holds the lifeline and renews the lease, three times per lease.

    It waits on the lifeline's own socket: when the server drops it, the lock is taken again at
    once. After each renewal it calls `on_renewal`. When the worker has been declared dead, as after
    a long freeze, its steps are others' already, and it goes on as a new worker (`worker` changes).
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
        self._register()
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

    def _register(self) -> None:
        has_lifeline = self._lifeline is not None and self._lifeline.hold(self.worker.worker_id)
        with self._database.begin() as connection:
            workers.register(
                connection,
                self.worker,
                lease_seconds=self._lease_seconds,
                has_lifeline=has_lifeline,
            )

    def _live(self) -> None:
        while not self._stopping:
            try:
                is_broken = self._sleep(self._lease_seconds / 3)
                if self._stopping:
                    return
                if is_broken and not self._regain_lifeline():
                    # The server has not yet missed our old session, which has the lock.
                    self._pause(RECONNECT_SECONDS)
                self._renew()
            except (CeleriacError, psycopg.Error) as error:
                logger.warning("heartbeat of %s: %s", self.worker.worker_id, error)
                self._pause(RECONNECT_SECONDS)
            except Exception:
                # The worker lives on without a lease, so others would take its steps: keep trying.
                logger.exception("heartbeat of %s failed", self.worker.worker_id)
                self._pause(RECONNECT_SECONDS)

    def _sleep(self, seconds: float) -> bool:
        """Wait for the next renewal; true if the lifeline broke meanwhile."""
        watched: list[int] = [self._sleeping.fileno()]
        if self._lifeline is not None:
            if self._lifeline.is_broken:
                return True
            watched.append(self._lifeline.fileno())
        readable, _, _ = select.select(watched, [], [], max(0.0, seconds))
        return self._lifeline is not None and self._lifeline.fileno() in readable

    def _pause(self, seconds: float) -> None:
        select.select([self._sleeping], [], [], seconds)

    def _regain_lifeline(self) -> bool:
        assert self._lifeline is not None
        if not self._lifeline.hold(self.worker.worker_id):
            return False
        with self._database.connect() as connection:
            workers.regain_lifeline(connection, self.worker.worker_id)
        return True

    def _renew(self) -> None:
        with self._database.connect() as connection:
            is_alive = workers.renew(connection, self.worker.worker_id, self._lease_seconds)
            if is_alive:
                self._on_renewal(connection)
        if not is_alive:
            self._be_born_again()

    def _be_born_again(self) -> None:
        dead = self.worker.worker_id
        self.worker = self.worker.successor()
        logger.warning(
            "worker %s was declared dead while it was silent; its steps went to others, and it "
            "goes on as %s",
            dead,
            self.worker.worker_id,
        )
        self._database.drop_idle()  # its session carries the dead worker's name
        self._register()
