"""`celeriac migrate`, `worker` and `scheduler`: what an operator starts."""

import logging
import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from celeriac.cli.environment import database_url, environment, require_servers
from celeriac.cli.loading import loading
from celeriac.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from celeriac.settings import Settings

LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"],
    typer.Option(case_sensitive=False, help="What is written to standard error."),
]


def migrate(context: typer.Context, as_json: AsJson = False) -> None:
    """Bring the database to the schema that this version needs. Safe to run at any time."""
    from celeriac_storage.database import Database
    from celeriac_storage.schema import migrate as bring_up

    database = Database(database_url(environment(context).settings()), connections=1)
    try:
        revision = bring_up(database)
    finally:
        database.close()
    if as_json:
        print_json({"revision": revision})
    else:
        typer.echo(f"the schema is at revision {revision}")


def worker(
    context: typer.Context,
    queues: Annotated[
        str | None, typer.Option(help="Queues to serve, comma-separated.", show_default=False)
    ] = None,
    pool: Annotated[
        Literal["threads", "prefork", "solo"] | None,
        typer.Option(help="How many steps run at once in it.", show_default=False),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="Steps held at once, most of them waiting.")
    ] = None,
    steps_per_task: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Steps one task may take in a row.")
    ] = None,
    no_task_events: Annotated[
        bool, typer.Option("--no-task-events", help="Send no events for Flower: faster.")
    ] = False,
    log_level: LogLevel = "WARNING",
) -> None:
    """Execute steps until a signal ends it. Options override CELERIAC_* settings."""
    settings = environment(context).settings(
        queues=queues,
        pool=pool,
        slots=slots,
        steps_per_task=steps_per_task,
        task_events=False if no_task_events else None,
    )
    require_servers(settings)
    export_servers(settings)
    with loading():
        from celeriac.registry import load_agents
        from celeriac_tasks.worker_service import run_worker

        agents = load_agents(settings.agent_modules)
    raise typer.Exit(run_worker(settings, agents, log_level=log_level))


def scheduler(context: typer.Context, log_level: LogLevel = "WARNING") -> None:
    """Watch the workers, and publish what is due. Run two of them: one leads."""
    settings = environment(context).settings()
    require_servers(settings)
    logging.basicConfig(level=log_level, format="[%(asctime)s: %(levelname)s/%(name)s] %(message)s")
    with loading():
        from celeriac_scheduler.scheduler import Scheduler

    Scheduler(settings).run()


def export_servers(settings: "Settings") -> None:
    """Let this process's environment name the same servers as the global options did.

    The code of an agent's author looks there, as `examples/order_desk.py` does for its own tables
    in the same database; so do the processes that we start.
    """
    for name, url in (("DATABASE", settings.database_url), ("BROKER", settings.broker_url)):
        if url is not None:
            os.environ[f"CELERIAC_{name}_URL"] = url.get_secret_value()
