"""`celeriac api`: the HTTP API, on the configured servers."""

import logging
from typing import Annotated

import typer

from celeriac.cli.environment import database_url, environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.loading import loading
from celeriac.cli.processes import LogLevel, export_servers
from celeriac.errors import InvalidInput


def api(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8080,
    log_level: LogLevel = "WARNING",
) -> None:
    """Serve the HTTP API, and the console at `/`, until a signal ends it.

    Whoever asks needs a token, from this machine too: `celeriac token create` makes one. Put a
    proxy that speaks TLS before it where others than this machine are to reach it.
    """
    settings = environment(context).settings()
    database_url(settings)
    export_servers(settings)
    logging.basicConfig(level=log_level, format="[%(asctime)s: %(levelname)s/%(name)s] %(message)s")
    with loading():
        from celeriac_api.server import serve

    try:
        serve(
            settings,
            host=host,
            port=port,
            on_listening=lambda url: typer.echo(f"the API is at {url}"),
        )
    except InvalidInput as error:
        raise WrongUsage(str(error)) from error
