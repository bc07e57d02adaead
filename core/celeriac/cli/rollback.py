"""`celeriac rollback`: undo what a run did, and watch that if asked to."""

from typing import Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.output import AsJson, By, RunArgument, print_json
from celeriac.cli.starting import watch_to_end


def rollback(
    context: typer.Context,
    run_id: RunArgument,
    from_step: Annotated[
        int,
        typer.Option(
            "--from", metavar="STEP", help="Only calls whose id begins with this step, or later."
        ),
    ] = 0,
    by: By = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Watch until it has ended or needs a person.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Undo what a run did, the latest call first, each as its tool declares.

    The rollback is a run of its own. With --wait the command ends when that has ended, or needs a
    person's attention, prints it as `celeriac show` does, and exits with 0 only if it is completed.
    """
    with environment(context).client() as client:
        started = client.rollback(run_id, from_step, by=by)
        if wait:
            watch_to_end(client, started.run_id, as_json=as_json)
    if as_json:
        print_json({"run_id": started.run_id})
    else:
        typer.echo(
            f"run {run_id} is rolled back by run {started.run_id}, which is "
            f"{started.status}, {started.phase}"
        )
