"""Time and bytes per step as a run gets long."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from celeriac.agent import Agent
from celeriac.bench import agents
from celeriac.bench.processes import Processes, wait_until
from celeriac.client import Client
from celeriac.ids import RunId
from celeriac_storage import measuring
from celeriac_storage.database import Database

WINDOW = 20  # steps that one point's milliseconds are the mean of
SECONDS_PER_STEP = 0.5  # far more than one takes: a bound on the whole measurement


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """`milliseconds`: mean of the steps around `step`. `bytes`: of all tables since the start.
    `wal_bytes`: what the whole server has written to its log since the start, which tells as well
    what was rewritten."""

    step: int
    milliseconds: float
    bytes: int
    wal_bytes: int


def measure_growth(
    client: Client, database: Database, *, steps: int, with_effects: bool
) -> Iterator[GrowthPoint]:
    """Points of one run of `steps` steps, each with 1 KB of new conversation."""
    with database.begin() as connection:
        measuring.create_tables(connection)
    agent = agents.growth_with_effects if with_effects else agents.growth_of_thoughts
    limited = Agent(
        agent.name,
        agent.model,
        tools=agent.tools,
        limits=agents.LIMITS,
    )
    with Processes(database, {}) as processes:
        processes.start_scheduler()
        processes.wait_for_workers(processes.start_worker())
        before, wal_before = _bytes(database), _wal_bytes(database)
        run_id = client.start(limited, None).run_id
        marks = sorted({WINDOW, *range(steps // 10, steps + 1, steps // 10)})
        for mark in marks:
            wait_until(
                lambda mark=mark: _step(database, run_id) >= mark,  # type: ignore[misc]
                steps * SECONDS_PER_STEP,
                f"step {mark}",
            )
            if mark == marks[-1]:
                client.cancel(run_id)
                time.sleep(0.2)
            yield GrowthPoint(
                mark,
                _milliseconds(database, run_id, mark),
                _bytes(database) - before,
                _wal_bytes(database) - wal_before,
            )


def _step(database: Database, run_id: RunId) -> int:
    with database.connect() as connection:
        return measuring.current_step(connection, run_id)


def _milliseconds(database: Database, run_id: RunId, mark: int) -> float:
    with database.connect() as connection:
        mean = measuring.mean_step_milliseconds(connection, run_id, max(0, mark - WINDOW), mark - 1)
    return round(mean, 3)


def _bytes(database: Database) -> int:
    with database.connect() as connection:
        return measuring.table_bytes(connection)


def _wal_bytes(database: Database) -> int:
    with database.connect() as connection:
        return measuring.wal_bytes(connection)
