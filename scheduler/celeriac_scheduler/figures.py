"""What a scheduler process counts of itself; the one that leads does the work that is counted."""

from collections.abc import Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from celeriac_storage.verdicts import Verdict

REGISTRY = CollectorRegistry(auto_describe=True)

IS_LEADER = Gauge("celeriac_is_leader", "Whether this scheduler leads", registry=REGISTRY)
WORKER_DEATHS = Counter(
    "celeriac_worker_deaths",
    "Workers that this scheduler declared dead",
    ["verdict"],
    registry=REGISTRY,
)
for _verdict in get_args(Verdict):
    WORKER_DEATHS.labels(_verdict)  # from zero on: of a figure that begins with 1, no rate is known
FAILOVERS = Counter(
    "celeriac_failovers", "Steps taken from a worker and published for others", registry=REGISTRY
)
PUBLISHED_AGAIN = Counter(
    "celeriac_steps_published_again",
    "Queued steps whose message was missing on the broker past their backoff",
    registry=REGISTRY,
)
DEFICIT = Gauge(
    "celeriac_dispatch_deficit",
    "Queued steps beyond the messages on the broker, while this scheduler leads",
    ["queue"],
    registry=REGISTRY,
)
BROKER_LOSSES = Counter(
    "celeriac_broker_losses", "Times that the broker was flushed or restarted", registry=REGISTRY
)
DUTY_FAILURES = Counter(
    "celeriac_duty_failures",
    "Duties of the scheduler that failed and came again",
    registry=REGISTRY,
)

MOST_QUEUES = 50


def note_deficits(shortages: Mapping[str, int]) -> None:
    """How many messages each queue is short of just now; the greatest, where there are many."""
    DEFICIT.clear()
    for queue in sorted(shortages, key=shortages.__getitem__, reverse=True)[:MOST_QUEUES]:
        DEFICIT.labels(queue).set(shortages[queue])
