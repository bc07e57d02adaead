"""The application: the global options, and the list of commands."""

from typing import Annotated

import typer

from celeriac.cli import (
    audit,
    bench,
    decisions,
    doctor,
    events,
    processes,
    runs,
    starting,
    workers,
)
from celeriac.cli.environment import Environment
from celeriac.cli.group import CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def celeriac(
    context: typer.Context,
    database_url: Annotated[
        str | None,
        typer.Option(help="PostgreSQL; else CELERIAC_DATABASE_URL.", show_default=False),
    ] = None,
    broker_url: Annotated[
        str | None,
        typer.Option(help="Redis or RabbitMQ; else CELERIAC_BROKER_URL.", show_default=False),
    ] = None,
    agents: Annotated[
        str | None,
        typer.Option(
            help="Modules or .py files that hold agents, comma-separated; else CELERIAC_AGENTS.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Agent runs that outlive the process that runs them.

    The options below may stand before or after the command.
    """
    context.obj = Environment(database_url, broker_url, agents)


for command in (
    processes.migrate,
    processes.worker,
    processes.scheduler,
    doctor.doctor,
    workers.agents,
    starting.run,
    runs.show,
    runs.runs,
    events.events,
    workers.workers,
    decisions.cancel,
    decisions.resolve,
    decisions.retry,
    audit.audit,
):
    app.command()(command)
app.add_typer(bench.bench, name="bench")


if __name__ == "__main__":
    app()
