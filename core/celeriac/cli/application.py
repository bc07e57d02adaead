"""The program without its commands: the global options, and how errors are told."""

from importlib.metadata import version
from typing import Annotated

import typer

from celeriac.cli.environment import Environment
from celeriac.cli.group import CommandGroup


def application() -> typer.Typer:
    """A program that has no command yet."""
    app = typer.Typer(
        cls=CommandGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: to load Rich for it takes three times as long
    )
    app.callback()(celeriac)
    return app


def _tell_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"celeriac {version('celeriac')}")
        raise typer.Exit


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
