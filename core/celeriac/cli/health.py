"""`celeriac health`: whether the worker or the scheduler of this very host is alive.

For the health checks of containers and orchestrators: one short query, by the database's clock. It
runs once a minute for ever beside what it watches, so it imports as little as it can.
"""

import socket
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from celeriac.cli.environment import database_url, environment
from celeriac.errors import CeleriacError

if TYPE_CHECKING:
    from celeriac.settings import Settings
    from celeriac_storage.database import Database

MOST_SILENCE_SECONDS = 15.0
"""A scheduler speaks several times a term, unless a broker that swallows packets holds it up: it
gives up on that one after 5 s to connect, or 10 s to answer."""


def health(
    context: typer.Context,
    service: Annotated[
        Literal["worker", "scheduler"], typer.Argument(help="What should run on this host.")
    ],
) -> None:
    """Tell whether this host's worker or scheduler is alive; exit with 1 if not.

    A worker is alive while its lease runs and nobody has declared it dead; a scheduler, while it
    asks the database for its term. Where several run on one host, one that is alive is enough:
    give each a container of its own, or look at `celeriac workers`.
    """
    from celeriac_storage.database import Database

    settings = environment(context).settings()
    database = Database(database_url(settings), connections=1)
    try:
        finding = _worker(database) if service == "worker" else _scheduler(database, settings)
    finally:
        database.close()
    typer.echo(finding)


def _worker(database: "Database") -> str:
    from celeriac_storage.health import live_workers_on

    host = socket.gethostname()
    with database.connect() as connection:
        workers = live_workers_on(connection, host)
    if not workers:
        raise CeleriacError(
            f"no worker is alive on {host}: each that ever registered from there has stopped, was "
            "declared dead, or has not renewed its lease; see `celeriac workers` and its log"
        )
    return f"alive on {host}: {', '.join(workers)}"


def _scheduler(database: "Database", settings: "Settings") -> str:
    from celeriac_storage.health import read_crew, scheduler_silence_seconds

    with database.connect() as connection:
        if database.is_pooled:
            # The sessions that the server knows are the pooler's; whose they are cannot be told.
            if not read_crew(connection).has_scheduler:
                raise CeleriacError("no scheduler leads, here or elsewhere; see their logs")
            return "a scheduler leads, here or elsewhere: behind a pooler that is all one can tell"
        silence_seconds = scheduler_silence_seconds(connection)
    if silence_seconds is None:
        raise CeleriacError("no scheduler is connected to the database from this host's address")
    most_seconds = settings.leadership_seconds + MOST_SILENCE_SECONDS
    if silence_seconds > most_seconds:
        raise CeleriacError(
            f"the scheduler that is connected from this host's address has said nothing for "
            f"{silence_seconds:.0f} s, more than {most_seconds:g} s: it is frozen or stuck"
        )
    return f"the scheduler spoke {silence_seconds:.1f} s ago"
