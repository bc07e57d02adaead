"""`celeriac flower`: Celery's own monitor, on the configured broker."""

import logging
from typing import Annotated

import typer

from celeriac.cli.environment import environment, require_broker
from celeriac.cli.group import WrongUsage
from celeriac.cli.loading import loading
from celeriac.errors import InvalidInput


def flower(
    context: typer.Context,
    address: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 5555,
    auth: Annotated[
        str | None,
        typer.Option(
            metavar="USER:PASSWORD",
            help="Who may see it; else CELERIAC_FLOWER_AUTH, which `ps` does not show. "
            "Needed beyond loopback.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show workers, steps and queues in a browser. It changes nothing.

    Flower's other options are read from its FLOWER_* variables.
    """
    settings = environment(context).settings(flower_auth=auth)
    require_broker(settings)
    logging.basicConfig(level="WARNING", format="[%(asctime)s: %(levelname)s/%(name)s] %(message)s")
    with loading():
        from celeriac_tasks.flower import serve_flower

    try:
        serve_flower(
            settings,
            address=address,
            port=port,
            on_listening=lambda url: typer.echo(f"Flower is at {url}"),
        )
    except InvalidInput as error:
        raise WrongUsage(str(error)) from error
