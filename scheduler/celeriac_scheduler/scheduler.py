"""The scheduler's loop: a list of duties, each with its own period.

Run as many schedulers as you like. One leads at a time, which only saves the others work: each duty
moves rows by compare-and-set, so two that believe to lead, or one that wakes up after an hour, do
no harm.
"""

import logging
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
from sqlalchemy.exc import DBAPIError

from celeriac.errors import CeleriacError, DatabaseUnavailable
from celeriac.settings import Settings
from celeriac_scheduler import figures
from celeriac_scheduler.expiry import expire_proposals
from celeriac_scheduler.failover import Failover
from celeriac_scheduler.firing import fire_schedules
from celeriac_scheduler.forgetting import FORGET_SECONDS, forget_expired
from celeriac_scheduler.outlet import Outlet
from celeriac_scheduler.overdue import cancel_orphans, end_overdue
from celeriac_scheduler.redispatch import Redispatch
from celeriac_scheduler.retention import Retention
from celeriac_storage import verdicts
from celeriac_storage.database import TCP_OPTIONS, Database, libpq_url
from celeriac_storage.health import SCHEDULER_APPLICATION_NAME
from celeriac_storage.schema import check_schema
from celeriac_tasks.bell import Bell
from celeriac_tasks.broker import Broker
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.metrics.exporter import start_exporter
from celeriac_tasks.metrics.rows import Rows
from celeriac_tasks.publisher import Publisher

logger = logging.getLogger(__name__)

LEADER_ROLE = "scheduler"
EARS_APPLICATION_NAME = "celeriac-scheduler-ears"
LOCK_TIMEOUT_MILLISECONDS = 1000  # a frozen worker's row lock must not stop the one who frees it
TROUBLE_SECONDS = 0.25  # between tries while a server is away
TROUBLES_PER_WARNING = 40  # one about every ten seconds
DEAF_SECONDS = 5.0  # between tries to hear of new runs at once

PUBLISH_NEW_SECONDS = 0.1
PUBLISH_OVERDUE_SECONDS = 0.25
WATCH_BROKER_SECONDS = 0.25
MIND_SECONDS = 1.0
END_OVERDUE_SECONDS = 0.25
FIRE_SECONDS = 0.25


@dataclass(slots=True)
class Duty:
    """Something to do every so often, while leading."""

    act: Callable[[], None]
    every_seconds: float
    due_at: float = 0.0
    troubles: int = 0  # in a row

    def perform(self) -> None:
        """Do it, and say when it is due again. Raises `DatabaseUnavailable`, and nothing else: a
        broker that is away, a row that somebody holds for longer than our lock timeout, or a bug
        must keep neither the other duties nor the next ticks from coming.
        """
        self.due_at = time.monotonic() + self.every_seconds
        try:
            self.act()
            self.troubles = 0
        except DatabaseUnavailable:
            raise
        except Exception as error:
            figures.DUTY_FAILURES.inc()
            self.due_at = time.monotonic() + max(self.every_seconds, TROUBLE_SECONDS)
            if self.troubles % TROUBLES_PER_WARNING == 0:
                is_known = isinstance(error, CeleriacError | DBAPIError)
                logger.warning("%s; trying again", error, exc_info=not is_known)
            self.troubles += 1


class Scheduler:
    """One scheduler process."""

    def __init__(self, settings: Settings) -> None:
        assert settings.database_url is not None
        self._settings = settings
        self._holder = uuid4().hex
        url = settings.broker_url
        self._bell = Bell.of_broker(url.get_secret_value() if url else None)
        self._database = Database(
            settings.database_url.get_secret_value(),
            application_name=lambda: SCHEDULER_APPLICATION_NAME,
            # One session for life: the lease rule counts from the moment it began.
            connections=1,
            idle_limit_seconds=settings.lease_seconds,
            lock_timeout_milliseconds=LOCK_TIMEOUT_MILLISECONDS,
            tell=None if self._bell is None else self._bell.ring,
        )
        app = make_app(settings)
        self._publisher = Publisher(app)
        broker = Broker(app)
        outlet = Outlet(self._database, self._publisher, broker)
        failover = Failover(self._database, outlet, settings)
        redispatch = Redispatch(self._database, outlet, broker, settings)
        self._publish_new = Duty(redispatch.publish_new, PUBLISH_NEW_SECONDS)
        self._duties = [
            Duty(failover.tick, settings.tick_seconds),
            self._publish_new,
            Duty(redispatch.publish_overdue, PUBLISH_OVERDUE_SECONDS),
            Duty(redispatch.watch_broker, WATCH_BROKER_SECONDS),
            Duty(failover.take_back_overdue, MIND_SECONDS),
            Duty(redispatch.mind_workers, MIND_SECONDS),
            Duty(redispatch.mind_threads, MIND_SECONDS),
            Duty(redispatch.mind_budgets, MIND_SECONDS),
            Duty(partial(expire_proposals, self._database), MIND_SECONDS),
            Duty(partial(forget_expired, self._database), FORGET_SECONDS),
            Duty(partial(end_overdue, self._database), END_OVERDUE_SECONDS),
            Duty(partial(cancel_orphans, self._database), MIND_SECONDS),
            Duty(partial(fire_schedules, self._database), FIRE_SECONDS),
        ]
        self._retention: Retention | None = None
        if settings.retention_days is not None:
            self._retention = Retention(settings, lambda: time.monotonic() < self._lead_until)
        self._lead_until = 0.0
        self._ask_again_at = 0.0
        self._ears: psycopg.Connection[Any] | None = None  # hears of runs that clients started
        self._deaf_until = 0.0
        self._is_stopping = False
        self._troubles = 0

    def run(self) -> None:
        """Work until SIGTERM or SIGINT. Raises if the servers are not there at the start; later
        outages are waited for."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        check_schema(self._database)
        self._publisher.warm()  # the first failover must not pay for the connection
        self._start_exporter()
        if self._retention is not None:
            self._retention.start()
        while not self._is_stopping:
            try:
                self._work()
                self._troubles = 0
            except (CeleriacError, DBAPIError, psycopg.Error) as error:
                self._pause_for(error)
        if self._retention is not None:
            self._retention.stop()
        if self._bell is not None:
            self._bell.close()
        self._database.close()

    def _start_exporter(self) -> None:
        if self._settings.metrics_port is None:
            return
        # A session of its own: a duty must not wait for whoever counts.
        database = Database(
            self._database.url, application_name=lambda: "celeriac-metrics", connections=1
        )
        figures.REGISTRY.register(Rows(database.begin))
        start_exporter(self._settings, figures.REGISTRY)

    def _work(self) -> None:
        if not self._leads():
            time.sleep(min(TROUBLE_SECONDS, self._settings.leadership_seconds / 4))
            return
        now = time.monotonic()
        for duty in self._duties:
            if duty.due_at <= now:
                duty.perform()
        self._listen(min(duty.due_at for duty in self._duties) - time.monotonic())

    def _leads(self) -> bool:
        now = time.monotonic()
        if now >= self._ask_again_at:
            seconds = self._settings.leadership_seconds
            with self._database.connect() as connection:
                is_leader = verdicts.lead(connection, LEADER_ROLE, self._holder, seconds)
            self._ask_again_at = now + seconds / 4
            self._lead_until = now + seconds if is_leader else 0.0
            figures.IS_LEADER.set(is_leader)
            if not is_leader:
                figures.note_deficits({})  # the leader's business
        return now < self._lead_until

    def _listen(self, seconds: float) -> None:
        """Sleep, but wake up at once when a client has started a run."""
        try:
            if self._ears is None and time.monotonic() >= self._deaf_until:
                self._ears = self._open_ears()
            heard = [] if self._ears is None else [self._ears]
            readable, _, _ = select.select(heard, [], [], max(0.0, seconds))
            for ears in readable:
                for _ in ears.notifies(timeout=0):
                    self._publish_new.due_at = 0.0
        except psycopg.Error as error:
            # Without ears a new run is found a tenth of a second later.
            logger.warning("not hearing of new runs: %s", error)
            self._close_ears()
            self._deaf_until = time.monotonic() + DEAF_SECONDS

    def _open_ears(self) -> psycopg.Connection[Any]:
        ears = psycopg.connect(
            libpq_url(self._database.url),
            autocommit=True,
            application_name=EARS_APPLICATION_NAME,
            **TCP_OPTIONS,
        )
        ears.execute("LISTEN celeriac_started")
        return ears

    def _close_ears(self) -> None:
        if self._ears is not None:
            self._ears.close()
            self._ears = None

    def _pause_for(self, error: Exception) -> None:
        if self._troubles % TROUBLES_PER_WARNING == 0:
            logger.warning("%s; trying again", error)
        self._troubles += 1
        self._close_ears()
        time.sleep(TROUBLE_SECONDS)

    def _stop(self, *_: object) -> None:
        self._is_stopping = True
