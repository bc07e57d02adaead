"""What an activity of a workflow costs: alone after another, and fanned out.

    python benchmarks/workflows.py [ACTIVITIES ...]

Needs CELERIAC_DATABASE_URL, a migrated database of its own, and CELERIAC_BROKER_URL. Prints a JSON
line for each number of activities (10, 100, 1000) and each shape. A worker in this process takes
one step after the other, without Celery between them: the milliseconds are what claim, code, call,
commit and publishing take for one activity, its workflow's turns included. `round_trips` are those
to PostgreSQL, `wal_bytes` what it writes to its log. `cold_replay_ms` is a turn that begins with
nothing in memory at the end of the run, with all of the log to read and to replay.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import psycopg
from sqlalchemy import Connection

from celeriac import WorkflowContext, tool, workflow
from celeriac.client import Client
from celeriac.ids import RunId
from celeriac.settings import load_settings
from celeriac_storage.database import Database
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.live_flow import FlowCache
from celeriac_tasks.step import take_step
from celeriac_tasks.worker_process import WorkerProcess


@tool(effect="none")
def echo(number: int) -> str:
    """Return a hundred bytes."""
    return f"{number:0100}"


@workflow(tools=[echo])
async def sequence(ctx: WorkflowContext, count: int) -> int:
    done = [await ctx.activity(echo, number=number) for number in range(count)]
    await ctx.wait_event("end")
    return len(done)


@workflow(tools=[echo])
async def fan_out(ctx: WorkflowContext, count: int) -> int:
    done = await ctx.gather(*[ctx.activity(echo, number=number) for number in range(count)])
    await ctx.wait_event("end")
    return len(done)


class Count:
    """Round trips to the server since `reset`."""

    def __init__(self) -> None:
        self.round_trips = 0
        waited = psycopg.Connection.wait

        def counted(connection: Any, *args: Any, **kwargs: Any) -> Any:
            self.round_trips += 1
            return waited(connection, *args, **kwargs)

        psycopg.Connection.wait = counted  # type: ignore[method-assign, assignment]  # counts, and waits


def queued(database: Database) -> list[tuple[RunId, int]]:
    with database.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT run_id, step FROM celeriac.runs WHERE status = 'queued' ORDER BY created_at"
        )
        return [(RunId(row[0]), row[1]) for row in rows]


def wal_position(connection: Connection) -> int:
    return int(
        connection.exec_driver_sql(
            "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        ).scalar_one()
    )


def measure(worker: WorkerProcess, client: Client, count: Count, shape: str, n: int) -> None:
    run_id = client.start(shape, n).run_id
    seconds, trips = 0.0, 0
    with worker.database.connect() as connection:
        wal = wal_position(connection)
    while due := queued(worker.database):
        for step in due:
            before, began = count.round_trips, time.perf_counter()
            take_step(worker, *step)
            seconds += time.perf_counter() - began
            trips += count.round_trips - before
    with worker.database.connect() as connection:
        wal = wal_position(connection) - wal
    worker.flows = FlowCache()
    client.send_event(run_id, "end")
    (last,) = queued(worker.database)
    began = time.perf_counter()
    take_step(worker, *last)
    cold = time.perf_counter() - began
    assert client.get(run_id).result == n
    figures = {
        "shape": shape,
        "activities": n,
        "ms_per_activity": round(1000 * seconds / n, 2),
        "round_trips_per_activity": round(trips / n, 2),
        "wal_bytes_per_activity": wal // n,
        "cold_replay_ms": round(1000 * cold, 1),
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def main() -> None:
    settings = load_settings()
    declared = {each.name: each for each in (sequence, fan_out)}
    worker = WorkerProcess(settings, make_app(settings), declared)
    worker.start()
    client = Client(worker.database.url)
    count = Count()
    try:
        for shape in declared:
            for n in [int(text) for text in sys.argv[1:]] or [10, 100, 1000]:
                measure(worker, client, count, shape, n)
    finally:
        client.close()
        worker.stop()


if __name__ == "__main__":
    main()
