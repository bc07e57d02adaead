"""`celeriac events`."""

from typing import Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.output import AsJson, RunArgument, brief, clock, console, print_json


def events(
    context: typer.Context,
    run_id: RunArgument,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for those to come, up to the run's last.")
    ] = False,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Only those after SEQ.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print a run's history, which has no gap and never changes."""
    out = console()
    with environment(context).client() as client:
        for event in client.events(run_id, after, follow=follow):
            if as_json:
                print_json(event)
            else:
                data = brief(dict(event.data), 140)
                out.print(f"{event.seq:>5}  {clock(event.at)}  {event.type:<20} {data}")
