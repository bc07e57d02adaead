"""`celeriac plan`: start plans, look at how far they have come, and go on with what is left."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli import starting
from celeriac.cli.environment import environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, By, RunArgument, console, print_json
from celeriac.cli.plan_drawing import draw_plan
from celeriac.errors import InvalidInput, InvalidPlan

if TYPE_CHECKING:
    from celeriac.client import Client
    from celeriac.plan import Plan
    from celeriac.reports import Started

plan = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Start plans, show how far they have come, and go on with what is left of them.",
)

File = Annotated[str, typer.Argument(metavar="FILE", help="A plan as JSON; - reads it from stdin.")]
Wait = Annotated[bool, typer.Option("--wait", help="Watch until it has ended or needs attention.")]


@plan.command()
def run(
    context: typer.Context,
    file: File,
    runner: Annotated[
        str, typer.Option(metavar="AGENT", help="The name of the PlanRunner that executes it.")
    ] = "plans",
    thread: Annotated[
        str | None, typer.Option(metavar="T", help="The conversation; without one a new one.")
    ] = None,
    user: Annotated[str | None, typer.Option(metavar="U", help="Whose thread it is.")] = None,
    run_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="An id of your own: the plan never starts twice."),
    ] = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Start a run that executes a plan. What cannot be executed is refused, with every reason."""
    read = _read(file)
    with environment(context).client() as client:
        started = client.start_plan(
            read, runner=runner, thread_id=thread, user_id=user, run_id=run_id
        )
        _tell(client, started, wait=wait, as_json=as_json)


@plan.command()
def show(context: typer.Context, run_id: RunArgument, as_json: AsJson = False) -> None:
    """Show the plan of a run by layers: what each step needs, and how it stands."""
    with environment(context).client() as client:
        report = client.plan(run_id)
    if as_json:
        print_json(report)
    else:
        console().print(draw_plan(report))


@plan.command()
def retry(
    context: typer.Context,
    run_id: RunArgument,
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="The plan as it was edited; without, as it was."),
    ] = None,
    by: By = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Do what is left of the plan of a run that has ended. What was completed is kept, unless it,
    or something that it depends on, was edited."""
    edited = None if file is None else _read(file)
    with environment(context).client() as client:
        started = client.retry_plan(run_id, edited, by=by)
        _tell(client, started, wait=wait, as_json=as_json)


def _read(file: str) -> "Plan":
    from celeriac.codec import loads_strict
    from celeriac.plan import Plan

    name = "standard input" if file == "-" else file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(f"{name} cannot be read: {error}") from error
    try:
        value = loads_strict(text)
    except InvalidInput as error:
        raise WrongUsage(f"{name} is no plan, which is written as JSON: {error}") from error
    try:
        return Plan.from_json(value)
    except InvalidPlan:
        raise
    except InvalidInput as error:
        raise InvalidInput(f"{name} is no plan: {error}") from error


def _tell(client: "Client", started: "Started", *, wait: bool, as_json: bool) -> None:
    if wait:
        starting.watch_to_end(client, started.run_id, as_json=as_json)
    if as_json:
        print_json({"run_id": started.run_id})
    else:
        typer.echo(f"run {started.run_id} is {started.status}, {started.phase}")
