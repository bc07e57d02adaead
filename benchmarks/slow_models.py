"""Two hundred model calls that take three seconds each, at once, in one worker process.

    python benchmarks/slow_models.py [CALLS]

Needs CELERIAC_DATABASE_URL (migrated) and CELERIAC_BROKER_URL. Prints one JSON line: how long all
runs took, the worker's memory before and at the peak, and its connections to the provider and to
PostgreSQL at the peak.
"""

import json
import os
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from celeriac import Agent
from celeriac.bench.processes import Processes, wait_until
from celeriac.client import Client
from celeriac.settings import settings
from celeriac_storage.database import Database
from tests.provider_server import ProviderServer, Reply

DELAY_SECONDS = 3.0
ADDRESS = "SLOW_MODELS_PROVIDER"
SPARE_SLOTS = 8


def make_agent(address: str) -> Agent:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=address, api_key="unused")
    return Agent("slow-models", OpenAIChatModel("slow", provider=provider))


if ADDRESS in os.environ:  # imported by the worker
    agent = make_agent(os.environ[ADDRESS])


def measure(calls: int) -> dict[str, object]:
    configured = settings()
    assert configured.database_url is not None
    assert configured.broker_url is not None
    url = configured.database_url.get_secret_value()
    database = Database(url, connections=2)
    with (
        ProviderServer([Reply.text("done", delay_seconds=DELAY_SECONDS)]) as provider,
        Client(url, configured.broker_url.get_secret_value()) as client,
        Processes(
            database,
            {
                "CELERIAC_AGENTS": __file__,
                "CELERIAC_SLOTS": str(calls + SPARE_SLOTS),
                ADDRESS: provider.url,
            },
        ) as processes,
    ):
        processes.start_scheduler()
        popen = processes.start_worker()
        processes.wait_for_workers(popen)
        worker = psutil.Process(popen.pid)
        before = worker.memory_info().rss
        with database.begin() as connection:
            started = [
                client.start(make_agent(provider.url), "hello", connection=connection).run_id
                for _ in range(calls)
            ]
            began = time.monotonic()
        peak = {"rss": 0, "provider": 0, "database": 0}

        def are_done() -> bool:
            look(worker, provider.url, peak)
            with database.connect() as connection:
                done = connection.exec_driver_sql(
                    "SELECT count(*) FROM celeriac.runs"
                    " WHERE run_id = ANY (%s) AND status = 'completed'",
                    (started,),
                ).scalar_one()
            return bool(done == calls)

        wait_until(are_done, 120, f"{calls} runs", every=0.1)
        took = time.monotonic() - began
    return {
        "calls": calls,
        "delay_seconds": DELAY_SECONDS,
        "seconds": round(took, 2),
        "rss_before_mb": round(before / 2**20, 1),
        "rss_peak_mb": round(peak["rss"] / 2**20, 1),
        "provider_connections": peak["provider"],
        "database_connections": peak["database"],
    }


def look(worker: psutil.Process, provider: str, peak: dict[str, int]) -> None:
    port = int(provider.split(":")[2].split("/", maxsplit=1)[0])
    connected = [
        connection.raddr.port
        for connection in worker.net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED
    ]
    peak["rss"] = max(peak["rss"], worker.memory_info().rss)
    peak["provider"] = max(peak["provider"], connected.count(port))
    peak["database"] = max(peak["database"], connected.count(5432))


if __name__ == "__main__":
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    sys.stdout.write(json.dumps(figures) + "\n")
