"""How long a step waits for another worker after its own was killed."""

import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from celeriac.bench import agents
from celeriac.bench.processes import Processes, wait_until
from celeriac.client import Client
from celeriac.ids import RunId
from celeriac_storage import measuring
from celeriac_storage.database import Database

WORKERS = 3
ACT_STEP = 3  # think, insert, think, and this one holds still


@dataclass(frozen=True, slots=True)
class FailoverFigures:
    """`seconds`: from each SIGKILL to the same step's next claim, by the database's clock."""

    kills: int
    median_seconds: float
    p99_seconds: float
    max_seconds: float
    doubled_effects: int
    lost_runs: int
    seconds: list[float]


def measure_failover(
    client: Client,
    database: Database,
    kills: int,
    on_kill: Callable[[float], None] = lambda _: None,
) -> FailoverFigures:
    """Kill the worker that holds a run, `kills` times, each at a random moment of its step."""
    with database.begin() as connection:
        measuring.create_tables(connection)
    runs: list[RunId] = []
    seconds: list[float] = []
    with Processes(database, {"CELERIAC_QUEUES": "celeriac"}) as processes:
        processes.start_scheduler()
        workers = [processes.start_worker() for _ in range(WORKERS)]
        processes.wait_for_workers(*workers)
        for _ in range(kills):
            run_id = client.start(agents.failover, None).run_id
            runs.append(run_id)
            victim = _holder(database, run_id, workers)
            time.sleep(random.uniform(0.0, 0.2))  # noqa: S311 - anywhere in the scheduler's tick
            seconds.append(_kill_and_time(database, run_id, victim))
            on_kill(seconds[-1])
            # A step that dies twice is run alone from then on: let this one end before the next.
            client.wait(run_id, timeout_seconds=60)
            workers.remove(victim)
            processes.wait_for_workers(*workers)
            workers.append(processes.start_worker())
        lost = _count_lost(client, runs)
    seconds.sort()
    return FailoverFigures(
        kills=len(seconds),
        median_seconds=round(statistics.median(seconds), 4),
        p99_seconds=round(seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))], 4),
        max_seconds=round(seconds[-1], 4),
        doubled_effects=_count_doubled(database, runs),
        lost_runs=lost,
        seconds=[round(each, 4) for each in seconds],
    )


def _holder(
    database: Database, run_id: RunId, workers: list["subprocess.Popen[bytes]"]
) -> "subprocess.Popen[bytes]":
    """The worker process that is inside the step to be killed, once there is one."""
    found: list[subprocess.Popen[bytes]] = []

    def is_held() -> bool:
        with database.connect() as connection:
            pid = measuring.holder_pid(connection, run_id, ACT_STEP)
        found.extend(worker for worker in workers if worker.pid == pid)
        return bool(found)

    wait_until(is_held, 30, f"run {run_id} to reach step {ACT_STEP}", every=0.005)
    return found[0]


def _kill_and_time(database: Database, run_id: RunId, victim: "subprocess.Popen[bytes]") -> float:
    with database.connect() as connection:
        before = measuring.latest_claim(connection, run_id)
        killed_at = before.looked_at
        os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    started_at = killed_at

    def is_taken_over() -> bool:
        nonlocal started_at
        with database.connect() as connection:
            claim = measuring.latest_claim(connection, run_id)
        started_at = claim.step_started_at or killed_at
        return claim.epoch > before.epoch and started_at > killed_at

    wait_until(is_taken_over, 120, f"run {run_id} to be taken over", every=0.01)
    return float((started_at - killed_at).total_seconds())


def _count_lost(client: Client, runs: list[RunId]) -> int:
    return sum(client.wait(run_id, timeout_seconds=60).status != "completed" for run_id in runs)


def _count_doubled(database: Database, runs: list[RunId]) -> int:
    with database.connect() as connection:
        return measuring.count_doubled_effects(connection, runs)
