"""What the database's rows say just now: the same for every process that serves it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import psycopg
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celeriac.errors import CeleriacError
from celeriac_storage.gauges import Gauge, read_gauges

logger = logging.getLogger(__name__)

FRESH_SECONDS = 2.0
"""Whoever asks again within this time gets the same figures: one look for all scrapes."""

PREFIX = "celeriac_"
READ = "rows_read"

ROWS: Mapping[str, tuple[str, Sequence[str]]] = {
    "runs": ("Runs that have not ended", ("status", "phase")),
    "queue_age_seconds": ("How long the oldest queued step waits", ("queue",)),
    "unpublished_steps": ("Queued steps that no message was sent for yet", ()),
    "step_age_seconds": ("How long the oldest step in progress takes", ()),
    "attention_age_seconds": ("How long the oldest run needs attention", ()),
    "effects_unsettled": ("Calls that wait for a person to say what came of them", ("state",)),
    "approvals_pending": ("Proposals that nobody has decided", ()),
    "approval_age_seconds": ("How long the oldest of them waits", ()),
    "workers": ("Workers that neither left nor were declared dead", ("state",)),
    "lease_age_seconds": ("How long the most silent of them is silent", ()),
    "worker_deaths_last_hour": ("Workers declared dead within the hour", ("verdict",)),
    "budgets": ("Budgets by how full they are", ("scope", "measure", "state")),
    "budget_use_ratio": ("How much of its hard limit the fullest has used", ("scope", "measure")),
    "scheduler_leads": ("Whether some scheduler leads", ()),
    READ: ("Whether the rows could be read: without, the others are missing", ()),
}
"""By the name without its prefix, as `celeriac_storage.gauges` has it."""


class Rows(Collector):
    """Reads them through `begin`, a transaction. A database that is away is a figure, too."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._begin = begin
        self._lock = threading.Lock()
        self._gauges: list[Gauge] = []
        self._fresh_until = 0.0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._gauges = self._read()
                self._fresh_until = time.monotonic() + FRESH_SECONDS
            gauges = self._gauges
        for name, (meaning, labels) in ROWS.items():
            family = GaugeMetricFamily(PREFIX + name, meaning, labels=labels)
            for gauge in gauges:
                if gauge.name == name:
                    family.add_metric(gauge.labels, gauge.value)
            yield family

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Registering must not ask the database."""
        for name, (meaning, labels) in ROWS.items():
            yield GaugeMetricFamily(PREFIX + name, meaning, labels=labels)

    def _read(self) -> list[Gauge]:
        try:
            with self._begin() as connection:
                return [*read_gauges(connection), Gauge(READ, (), 1)]
        except (CeleriacError, DBAPIError, psycopg.Error) as error:
            logger.warning("the figures of the rows are missing: %s", error)
            return [Gauge(READ, (), 0)]
