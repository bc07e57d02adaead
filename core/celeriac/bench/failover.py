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
from celeriac.bench.processes import Processes, comes_true
from celeriac.client import Client
from celeriac.ids import RunId
from celeriac_storage import measuring
from celeriac_storage.database import Database

WORKERS = 3
REACH_SECONDS = 30.0  # for a run to come to the step in which its worker is killed
LOST_SECONDS = 60.0  # a run that has not ended, or a step that was not claimed, by then is lost
ACT_STEP = 3  # think, insert, think, and this one holds still


@dataclass(frozen=True, slots=True)
class FailoverFigures:
    """`seconds`: from each SIGKILL to the same step's next claim, by the database's clock.

    `lost_runs` were not completed in the time that they were given, which is long.
    """

    kills: int
    median_seconds: float | None  # None: no killed worker's step was claimed again
    p99_seconds: float | None
    max_seconds: float | None
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
    kills_done = 0
    with Processes(database, {}) as processes:
        processes.start_scheduler()
        workers = [processes.start_worker() for _ in range(WORKERS)]
        processes.wait_for_workers(*workers)
        for _ in range(kills):
            run_id = client.start(agents.failover, None).run_id
            runs.append(run_id)
            victim = _holder(database, run_id, workers)
            if victim is None:
                continue  # counted as lost, if it does not come back meanwhile
            time.sleep(random.uniform(0.0, 0.2))  # noqa: S311 - anywhere in the scheduler's tick
            took = _kill_and_time(database, run_id, victim)
            kills_done += 1
            if took is not None:
                seconds.append(took)
                on_kill(took)
            # A step that dies twice is run alone from then on: let this one end before the next.
            _is_completed(client, run_id)
            workers.remove(victim)
            processes.wait_for_workers(*workers)
            workers.append(processes.start_worker())
        lost = sum(not _is_completed(client, run_id) for run_id in runs)
    seconds.sort()
    return FailoverFigures(
        kills=kills_done,
        median_seconds=round(statistics.median(seconds), 4) if seconds else None,
        p99_seconds=_nearest_rank(seconds, 0.99),
        max_seconds=_nearest_rank(seconds, 1.0),
        doubled_effects=_count_doubled(database, runs),
        lost_runs=lost,
        seconds=[round(each, 4) for each in seconds],
    )


def _nearest_rank(ordered: list[float], share: float) -> float | None:
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))], 4)


def _holder(
    database: Database, run_id: RunId, workers: list["subprocess.Popen[bytes]"]
) -> "subprocess.Popen[bytes] | None":
    """The worker process that is inside the step to be killed, once there is one."""
    found: list[subprocess.Popen[bytes]] = []

    def is_held() -> bool:
        with database.connect() as connection:
            pid = measuring.holder_pid(connection, run_id, ACT_STEP)
        found.extend(worker for worker in workers if worker.pid == pid)
        return bool(found)

    return found[0] if comes_true(is_held, REACH_SECONDS, every=0.005) else None


def _kill_and_time(
    database: Database, run_id: RunId, victim: "subprocess.Popen[bytes]"
) -> float | None:
    """Seconds until the step was claimed again; None if it was not."""
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

    if not comes_true(is_taken_over, LOST_SECONDS, every=0.01):
        return None
    return float((started_at - killed_at).total_seconds())


def _is_completed(client: Client, run_id: RunId) -> bool:
    """Whether it is, or becomes so in a time that is long for it."""
    try:
        return client.wait(run_id, timeout_seconds=LOST_SECONDS).status == "completed"
    except TimeoutError:
        return False


def _count_doubled(database: Database, runs: list[RunId]) -> int:
    with database.connect() as connection:
        return measuring.count_doubled_effects(connection, runs)
