"""`celeriac events`."""

from typing import Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.output import AsJson, console, print_json


def events(
    context: typer.Context,
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The run's id.", show_default=False)
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for those to come, up to the run's last.")
    ] = False,
    after: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Only those after SEQ.")] = 0,
    as_json: AsJson = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of events, and no events.")
    ] = False,
) -> None:
    """Print a run's history, which has no gap and never changes."""
    if schema:
        from celeriac.events import json_schema

        print_json(json_schema())
        return
    if run_id is None:
        context.fail("Missing argument 'RUN'; only --schema needs none.")
    with environment(context).client() as client:
        if as_json:
            for event in client.events(run_id, after, follow=follow):
                print_json(event)
            return
        from celeriac.cli.timeline import event_line, follow_events

        if follow:
            follow_events(client, run_id, after)
            return
        out = console()
        for event in client.events(run_id, after):
            out.print(event_line(event))
