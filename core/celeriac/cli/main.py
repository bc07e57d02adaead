"""The application: the global options, and the list of commands."""

from importlib.metadata import version
from typing import Annotated

import typer

from celeriac.cli import (
    api,
    approvals,
    attest,
    audit,
    bench,
    budgets,
    calls,
    decisions,
    demo,
    doctor,
    erase,
    events,
    flower,
    health,
    memories,
    plans,
    principals,
    processes,
    prune,
    replays,
    rollback,
    runs,
    schedules,
    starting,
    tokens,
    up,
    workers,
    workspaces,
)
from celeriac.cli.environment import Environment
from celeriac.cli.group import CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: to load Rich for it takes three times as long
)


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"celeriac {version('celeriac')}")
        raise typer.Exit


@app.callback()
def celeriac(
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(
            help="The HTTP API to use instead of a database; else CELERIAC_URL. Its token is "
            "CELERIAC_TOKEN.",
            show_default=False,
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            help="Whose runs to see in a database; else CELERIAC_TENANT, else default.",
            show_default=False,
        ),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(help="PostgreSQL; else CELERIAC_DATABASE_URL.", show_default=False),
    ] = None,
    broker_url: Annotated[
        str | None,
        typer.Option(help="Redis or RabbitMQ; else CELERIAC_BROKER_URL.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Folder of the stack to use, or to run; else CELERIAC_DATA, else .celeriac.",
            show_default=False,
        ),
    ] = None,
    agents: Annotated[
        str | None,
        typer.Option(
            help="Modules or .py files that hold agents, comma-separated; else CELERIAC_AGENTS.",
            show_default=False,
        ),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_tell_version, is_eager=True, help="Tell the version, and end."
        ),
    ] = False,
) -> None:
    """Agent runs that outlive the process that runs them.

    The options below may stand before or after the command. Where no server is named, a command
    uses those of the stack that runs in the data folder.
    """
    context.obj = Environment(url, tenant, database_url, broker_url, data, agents)


for command in (
    up.up,
    demo.demo,
    processes.migrate,
    processes.worker,
    processes.scheduler,
    api.api,
    flower.flower,
    doctor.doctor,
    health.health,
    workers.agents,
    starting.run,
    runs.show,
    runs.runs,
    starting.wait,
    events.events,
    workers.workers,
    decisions.say,
    decisions.send_event,
    decisions.interrupt,
    decisions.cancel,
    decisions.resolve,
    decisions.retry,
    decisions.fork,
    replays.replay,
    replays.diff,
    rollback.rollback,
    calls.calls,
    calls.submit,
    approvals.approvals,
    approvals.approve,
    approvals.edit,
    approvals.reject,
    principals.principals,
    prune.prune,
    attest.attest,
    audit.audit,
):
    app.command()(command)
app.add_typer(schedules.schedules, name="schedules")
app.add_typer(plans.plan, name="plan")
app.add_typer(tokens.token, name="token")
app.add_typer(memories.memories, name="memories")
app.add_typer(budgets.budgets, name="budgets")
app.add_typer(bench.bench, name="bench")
app.add_typer(workspaces.workspaces, name="workspaces")
app.add_typer(erase.erase, name="erase")


if __name__ == "__main__":
    app()
