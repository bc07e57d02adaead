"""Transitions per second, beside what plain Celery makes of the same pool in the same run."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from celery import Celery

from celeriac.bench import agents
from celeriac.bench.processes import Processes, wait_until
from celeriac.client import Client
from celeriac.settings import Settings
from celeriac_storage import measuring
from celeriac_storage.database import Database
from celeriac_tasks.celery_app import make_app

RUNS = 100
TRANSITIONS = 21  # of each run (`agents.throughput`); the hops of each chain
WORKERS = 2
DEADLINE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class ThroughputFigures:
    steps_per_task: int | str
    task_events: bool
    transitions_per_second: float
    celery_chain_per_second: float
    ratio: float


def measure_throughput(
    client: Client, database: Database, settings: Settings, steps_per_task: list[int | str]
) -> Iterator[ThroughputFigures]:
    """One line for each setting, events off and then on for one step per task."""
    with database.begin() as connection:
        measuring.create_tables(connection)
    cases = [(steps, False) for steps in steps_per_task]
    if 1 in steps_per_task:
        cases.append((1, True))
    chains: dict[bool, float] = {}
    for steps, task_events in cases:
        if task_events not in chains:
            chains[task_events] = _chain_rate(database, settings, task_events)
        rate = _run_rate(client, database, steps, task_events)
        yield ThroughputFigures(
            steps,
            task_events,
            round(rate, 1),
            round(chains[task_events], 1),
            round(rate / chains[task_events], 3),
        )


def _run_rate(client: Client, database: Database, steps: int | str, task_events: bool) -> float:
    environment = {
        "CELERIAC_STEPS_PER_TASK": str(steps),
        "CELERIAC_TASK_EVENTS": str(task_events).lower(),
    }
    with Processes(database, environment) as processes:
        processes.start_scheduler()
        processes.wait_for_workers(*[processes.start_worker() for _ in range(WORKERS)])
        client.wait(client.start(agents.throughput, None).run_id, timeout_seconds=30)  # warm up
        with database.begin() as connection:
            runs = [
                client.start(agents.throughput, None, connection=connection).run_id
                for _ in range(RUNS)
            ]
            began = time.monotonic()  # the commit makes them all due at once

        def are_done() -> bool:
            with database.connect() as connection:
                return measuring.count_completed(connection, runs) == RUNS

        wait_until(are_done, DEADLINE_SECONDS, f"{RUNS} runs to complete", every=0.05)
        ended = time.monotonic()
    return RUNS * TRANSITIONS / (ended - began)


def _chain_rate(database: Database, settings: Settings, task_events: bool) -> float:
    """As many chains of as many no-op tasks, each enqueueing the next."""
    with TemporaryDirectory(prefix="celeriac-bench-") as folder:
        return _timed_chains(database, settings, task_events, _Counter(Path(folder) / "count"))


def _timed_chains(
    database: Database, settings: Settings, task_events: bool, counter: "_Counter"
) -> float:
    app = chain_app(settings, counter)
    environment = {
        "CELERIAC_TASK_EVENTS": str(task_events).lower(),
        COUNT_FILE: str(counter.path),
    }
    with Processes(database, environment) as processes:
        workers = [processes.start("-m", __name__) for _ in range(WORKERS)]
        _wait_for_ping(app, len(workers))
        began = time.monotonic()
        for chain in range(RUNS):
            app.send_task("celeriac.bench.hop", args=(f"chain-{chain}", 1), queue=_QUEUE)
        wait_until(lambda: counter.value() >= RUNS, DEADLINE_SECONDS, "the chains", every=0.05)
        ended = time.monotonic()
    return RUNS * TRANSITIONS / (ended - began)


_QUEUE = "celeriac-bench-chain"
COUNT_FILE = "CELERIAC_BENCH_COUNT_FILE"
"""Tells the chain's workers where this measurement counts."""


def chain_app(settings: Settings, counter: "_Counter") -> Celery:
    """Plain Celery with the same broker settings, acknowledgement and serializer."""
    app = make_app(settings.model_copy(update={"queues": _QUEUE}))

    @app.task(name="celeriac.bench.hop", acks_late=True, ignore_result=True, shared=False)
    def hop(chain: str, number: int) -> None:
        if number >= TRANSITIONS:
            counter.add()
        else:
            app.send_task(
                "celeriac.bench.hop",
                args=(chain, number + 1),
                task_id=f"{chain}:{number + 1}",
                queue=_QUEUE,
                ignore_result=True,
            )

    return app


class _Counter:
    """Counts finished chains in a file: a broker that is measured should not do the counting."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def add(self) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(b".")

    def value(self) -> int:
        return self.path.stat().st_size


def _wait_for_ping(app: Celery, workers: int) -> None:
    def answer() -> bool:
        inspect: Any = app.control.inspect(timeout=0.5)
        return len(inspect.ping() or {}) >= workers

    wait_until(answer, 60, f"{workers} plain Celery workers")


if __name__ == "__main__":
    from celeriac.settings import settings as configured

    chosen = configured()
    worker = chain_app(chosen, _Counter(Path(os.environ[COUNT_FILE]))).Worker(
        hostname=f"chain-{os.getpid()}@localhost",
        pool=chosen.pool,
        concurrency=chosen.slots,
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    sys.exit(worker.exitcode)
