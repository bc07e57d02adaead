"""Running one worker: `celeriac worker`."""

import os
import socket
from collections.abc import Mapping

from celeriac.agent import Agent
from celeriac.settings import Settings
from celeriac_storage.database import Database
from celeriac_storage.schema import check_schema
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.dedicated_worker import DedicatedWorker
from celeriac_tasks.publisher import Publisher


def run_worker(
    settings: Settings, agents: Mapping[str, Agent], *, log_level: str = "WARNING"
) -> int:
    """Execute steps until a signal ends the worker; its exit code.

    Raises `DatabaseUnavailable`, `BrokerUnavailable` or `SchemaMismatch` if it cannot start. Later
    outages are waited for.
    """
    app = make_app(settings)
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value(), connections=1)
    check_schema(database)
    database.close()
    Publisher(app).warm()
    app.close()  # nothing of ours may be open when prefork forks
    DedicatedWorker(app, settings, agents)
    worker = app.Worker(
        hostname=f"celeriac-{os.getpid()}@{socket.gethostname()}",
        pool=settings.pool,
        concurrency=settings.slots if settings.pool == "threads" else _processes(settings),
        loglevel=log_level,
        # Workers share nothing but the database; gossip and mingle would only delay the start.
        without_gossip=True,
        without_mingle=True,
    )
    worker.start()
    return int(worker.exitcode or 0)


def _processes(settings: Settings) -> int:
    """Prefork runs one step in each child, model calls included, so it needs many to be of use."""
    return 1 if settings.pool == "solo" else min(settings.slots, 2 * (os.cpu_count() or 1))
