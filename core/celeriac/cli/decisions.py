"""What people tell a run: `celeriac say`, `send-event`, `interrupt`, `cancel`, `resolve` …"""

from typing import Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, By, RunArgument, print_json
from celeriac.cli.starting import parse_json
from celeriac.states import RunStatus


def say(
    context: typer.Context,
    run_id: RunArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the model is told.")],
    by: By = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="ID", help="An id of your own: said again under it, it is told once."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell a run something while it goes on. One that waits for its user goes on with it."""
    with environment(context).client() as client:
        status = client.say(run_id, text, by=by, key=key)
    heard = "was told it before" if status.is_terminal else "will hear it"
    _print(run_id, status, f"{heard}; it is {status}", as_json=as_json)


def send_event(
    context: typer.Context,
    run_id: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the code waits for.")],
    data: Annotated[
        str, typer.Argument(metavar="[JSON]", help="What the code is told of it.")
    ] = "null",
    by: By = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="ID", help="An id of your own: told again under it, it is told once."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Tell a workflow that something has happened. It is kept until the code waits for it."""
    told = parse_json(data, "JSON")
    with environment(context).client() as client:
        status = client.send_event(run_id, name, told, by=by, key=key)
    heard = "was told before" if status.is_terminal else "is told"
    _print(run_id, status, f"{heard} of {name}; it is {status}", as_json=as_json)


def interrupt(
    context: typer.Context, run_id: RunArgument, by: By = None, as_json: AsJson = False
) -> None:
    """Stop a run until its user says something. A tool's call in progress is recorded first."""
    with environment(context).client() as client:
        status = client.interrupt(run_id, by=by)
    _print(
        run_id,
        status,
        "is asked to stop; it does when the step in progress is recorded"
        if status is RunStatus.RUNNING
        else f"is stopped: `celeriac say {run_id} TEXT` lets it go on, `celeriac cancel` ends it",
        as_json=as_json,
    )


def cancel(
    context: typer.Context, run_id: RunArgument, by: By = None, as_json: AsJson = False
) -> None:
    """Cancel a run. A step in progress is recorded first, so a running effect is never lost."""
    with environment(context).client() as client:
        status = client.cancel(run_id, by=by)
    _print(
        run_id,
        status,
        "is cancelled"
        if status is RunStatus.CANCELLED
        else "is asked to end; it does when the step in progress is recorded",
        as_json=as_json,
    )


def resolve(
    context: typer.Context,
    run_id: RunArgument,
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="The call, as `show` lists it.")],
    committed: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="It took effect, and this is the result to tell."),
    ] = None,
    not_done: Annotated[
        bool, typer.Option("--not-done", help="It changed nothing, and never will.")
    ] = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Say what came of a call whose outcome is unknown; the run then goes on."""
    if (committed is not None) == not_done:
        raise WrongUsage("say either --committed JSON or --not-done")
    from celeriac.client import NotDone, TookEffect

    resolution = (
        NotDone() if committed is None else TookEffect(parse_json(committed, "--committed"))
    )
    with environment(context).client() as client:
        status = client.resolve(run_id, call_id, resolution, by=by)
    _print(run_id, status, f"is {status}", as_json=as_json)


def retry(
    context: typer.Context, run_id: RunArgument, by: By = None, as_json: AsJson = False
) -> None:
    """Let a run that needs attention, or has failed, try its last step again.

    A run that has failed stays as it is: another one goes on in its thread, whose id is printed.
    """
    with environment(context).client() as client:
        retried = client.retry(run_id, by=by)
    which = "" if retried.run_id == run_id else f"goes on as run {retried.run_id}, which "
    if as_json:
        print_json(retried)
    else:
        typer.echo(f"run {run_id} {which}is {retried.status}")


def fork(
    context: typer.Context,
    run_id: RunArgument,
    at: Annotated[
        int, typer.Option("--at", metavar="STEP", help="The step that is made anew.", min=0)
    ],
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Start a run that goes on from where a run stood before a step, in a thread of its own.

    What the run has done since is done again, under other idempotency keys.
    """
    with environment(context).client() as client:
        started = client.fork(run_id, at, by=by)
    if as_json:
        print_json({"run_id": started.run_id})
    else:
        typer.echo(
            f"run {run_id} is forked at step {at} as run {started.run_id}, which is "
            f"{started.status}, {started.phase}"
        )


def _print(run_id: str, status: RunStatus, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"run_id": run_id, "status": status})
    else:
        typer.echo(f"run {run_id} {words}")
