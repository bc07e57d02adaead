"""What readers of the event stream cost one API process, and how soon they are told.

    python benchmarks/subscribers.py [IDLE] [ACTIVE]

Needs CELERIAC_DATABASE_URL (migrated) and CELERIAC_BROKER_URL (Redis). First IDLE readers (1,000)
of runs in which nothing happens, a reader each; then, beside them, a reader for each of ACTIVE (50)
runs that a worker executes. Prints one JSON line: memory, CPU and connections of the API process
and transactions of the whole database with idle readers; then memory, CPU and connections with the
others, and the milliseconds from an event to the frame at its reader: from `at`, which is when its
transaction began, and, where the server has `track_commit_timestamp = on`, from its commit.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from celeriac import Agent
from celeriac.bench import agents
from celeriac.bench.processes import Processes, wait_until
from celeriac.client import Client
from celeriac.ids import DEFAULT_TENANT, UserId
from celeriac.scripted import ScriptedModel, say
from celeriac.settings import settings
from celeriac.sse import Decoder
from celeriac_storage import measuring, tokens
from celeriac_storage.database import Database

NOBODYS = Agent("nobodys", ScriptedModel([say("never")]))  # no worker has it: its runs only wait
IDLE_SECONDS = 10.0
CONNECT_SECONDS = 120.0
SETTLE_SECONDS = 12.0  # an idle session tells its statistics ten seconds late
Told = dict[tuple[str, int], tuple[float, float]]
"""By run and seq of an event: when it was written and when it was read, in seconds."""
PORT = int(os.environ.get("SUBSCRIBERS_PORT", "18080"))
URL = f"http://127.0.0.1:{PORT}"


async def read(url: str, token: str, run_id: str, told: Told, served: set[str]) -> None:
    """Read a run's stream to its end, and note when each event was read that is younger."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Authorization: Bearer {token}\r\nConnection: close\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.partition(b"\r\n")[0], head
    decoder, began = Decoder(), time.time()
    while size := int((await reader.readline()) or b"0", 16):
        chunk = await reader.readexactly(size + 2)
        now = time.time()
        for frame in decoder.feed(chunk[:-2]):
            event = json.loads(frame.data)
            at = datetime.fromisoformat(event["at"]).timestamp()
            if at > began:
                told[run_id, event["seq"]] = at, now
            served.add(run_id)
    writer.close()


async def measure(
    url: str, token: str, idle: Sequence[str], api: psutil.Process, database: Database
) -> tuple[dict[str, object], list[asyncio.Task[None]]]:
    empty = api.memory_info().rss
    served: set[str] = set()
    tasks = [asyncio.create_task(read(url, token, run, {}, served)) for run in idle]
    await asyncio.to_thread(
        wait_until, lambda: len(served) == len(idle), CONNECT_SECONDS, "all readers to be served"
    )
    await asyncio.sleep(SETTLE_SECONDS)
    cpu, statements = api.cpu_times(), count_statements(database)
    await asyncio.sleep(IDLE_SECONDS)
    then, rss = api.cpu_times(), api.memory_info().rss
    used = then.user + then.system - cpu.user - cpu.system
    return {
        "idle_readers": len(idle),
        "api_rss_mb": round(rss / 2**20, 1),
        "kilobytes_per_reader": round((rss - empty) / 1024 / max(1, len(idle)), 1),
        "api_cpu_percent": round(100 * used / IDLE_SECONDS, 1),
        "api_connections_to_servers": connections(api),
        "transactions_per_second": round(
            (count_statements(database) - statements) / IDLE_SECONDS, 1
        ),
    }, tasks


def connections(api: psutil.Process) -> int:
    """To PostgreSQL and Redis: those that are not to its own port."""
    made = api.net_connections()
    return sum(each.status == psutil.CONN_ESTABLISHED and each.laddr.port != PORT for each in made)


def count_statements(database: Database) -> int:
    """Transactions of the database so far; each idle look is one."""
    with database.connect() as connection:
        connection.exec_driver_sql("SELECT pg_stat_clear_snapshot()")
        found = connection.exec_driver_sql(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        ).scalar_one()
        return int(found)


async def run(idle: int, active: int) -> dict[str, object]:
    configured = settings()
    assert configured.database_url is not None
    assert configured.broker_url is not None
    url = configured.database_url.get_secret_value()
    database = Database(url, connections=2)
    with database.begin() as connection:
        measuring.create_tables(connection)
        _, token = tokens.create(
            connection, DEFAULT_TENANT, UserId("bench"), name="benchmark", roles=["operator"],
            expires_days=1, by=UserId("bench"),
        )  # fmt: skip
    limits = {"CELERIAC_API_REQUESTS_PER_SECOND": "10000", "CELERIAC_API_BURST_REQUESTS": "10000"}
    with (
        Client(url, configured.broker_url.get_secret_value()) as client,
        Processes(database, limits) as processes,
    ):
        popen = processes.start("-m", "celeriac.cli.main", "api", "--port", str(PORT))
        wait_until(lambda: _listens(popen.pid), 60, "the API to listen")
        api = psutil.Process(popen.pid)
        silent = [client.start(NOBODYS, "silent").run_id for _ in range(idle)]
        cost, tasks = await measure(URL, token, silent, api, database)
        # All readers are there before the first step: a slow machine would work ahead of them.
        told: Told = {}
        served: set[str] = set()
        runs = [client.start(agents.throughput, "busy").run_id for _ in range(active)]
        readers = [asyncio.create_task(read(URL, token, each, told, served)) for each in runs]
        await asyncio.to_thread(
            wait_until, lambda: len(served) == active, CONNECT_SECONDS, "all readers to be served"
        )
        processes.start_scheduler()
        worker = await asyncio.to_thread(processes.start_worker)
        await asyncio.to_thread(processes.wait_for_workers, worker)
        cpu, began = api.cpu_times(), time.monotonic()
        await asyncio.gather(*readers)
        then, seconds = api.cpu_times(), time.monotonic() - began
        used = then.user + then.system - cpu.user - cpu.system
        busy = {
            "api_cpu_percent_busy": round(100 * used / seconds, 1),
            "api_rss_mb_busy": round(api.memory_info().rss / 2**20, 1),
            "api_connections_to_servers_busy": connections(api),
        }
        for run_id in silent:
            client.cancel(run_id)
        await asyncio.gather(*tasks)
    commits = commit_times(database, runs)
    return {
        **cost,
        **busy,
        "active_runs": active,
        "events": len(told),
        "event_to_frame_ms": centiles([read - at for at, read in told.values()]),
        "commit_to_frame_ms": centiles(
            [read - commits[event] for event, (_, read) in told.items() if event in commits]
        ),
    }


def commit_times(database: Database, runs: Sequence[str]) -> Mapping[tuple[str, int], float]:
    """When each event of the runs was committed; none if the server does not keep that."""
    with database.connect() as connection:
        if connection.exec_driver_sql("SHOW track_commit_timestamp").scalar() != "on":
            return {}
        rows = connection.exec_driver_sql(
            "SELECT run_id, seq, pg_xact_commit_timestamp(xmin) FROM celeriac.events"
            " WHERE run_id = ANY (%s)",
            (list(runs),),
        )
        return {(run_id, seq): at.timestamp() for run_id, seq, at in rows}


def centiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Median and 99th percentile, in milliseconds."""
    if len(seconds) < 2:
        return None
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50": round(1000 * cuts[49], 1), "p99": round(1000 * cuts[98], 1)}


def _listens(pid: int) -> bool:
    return any(each.status == psutil.CONN_LISTEN for each in psutil.Process(pid).net_connections())


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    figures = asyncio.run(run(*given, *(1000, 50)[len(given) :]))
    sys.stdout.write(json.dumps(figures) + "\n")
