"""Tools that another process executes: `celeriac calls` and `submit`."""

from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, By, RunArgument, brief, print_json, print_table
from celeriac.cli.starting import parse_json

if TYPE_CHECKING:
    from celeriac.client import Result


def calls(
    context: typer.Context,
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only this run's.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List the calls that another process is to execute, the oldest first."""
    with environment(context).client() as client:
        found = client.requested_calls(run_id, limit=limit)
    if as_json:
        for call in found:
            print_json(call)
        return
    print_table(
        ["run", "call", "tool", "arguments", "requested"],
        [
            (call.run_id, call.call_id, call.tool, brief(call.arguments), call.requested_at)
            for call in found
        ],
        empty="no run waits for another process",
    )


def submit(
    context: typer.Context,
    run_id: RunArgument,
    call_ids: Annotated[
        list[str], typer.Argument(metavar="CALL...", help="The calls, as `calls` lists them.")
    ],
    result: Annotated[
        list[str] | None,
        typer.Option(metavar="JSON", help="What the call returned; once for each call, in order."),
    ] = None,
    error: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Or why it failed, which the model is told."),
    ] = None,
    receipt: Annotated[
        list[str] | None,
        typer.Option(
            metavar="JSON",
            help="Or, of a call that changes files, the receipt that `celeriac attest` makes.",
        ),
    ] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Tell what came of calls that another process has executed: of all of them, or of none.

    With the last result that it waits for, the run goes on. To submit the same again is no error;
    a result that is there is never replaced.
    """
    told = result or error or receipt or []
    given = [each for each in (result, error, receipt) if each is not None]
    if len(given) != 1 or len(told) != len(call_ids):
        raise WrongUsage(
            "say --result JSON once for each call, or --error TEXT, or --receipt JSON once for "
            f"each; there are {len(call_ids)} calls, {len(result or [])} results, "
            f"{len(error or [])} errors and {len(receipt or [])} receipts"
        )
    if len(set(call_ids)) != len(call_ids):
        raise WrongUsage(f"a call stands twice among {', '.join(call_ids)}")
    from celeriac.client import Failed, Receipt

    results: list[Result]
    if error:
        results = [Failed(text) for text in error]
    elif receipt:
        results = [Receipt(parse_json(text, "--receipt")) for text in receipt]
    else:
        results = [parse_json(text, "--result") for text in told]
    with environment(context).client() as client:
        status = client.submit(run_id, dict(zip(call_ids, results, strict=True)), by=by)
    if as_json:
        print_json({"run_id": run_id, "status": status})
    else:
        typer.echo(f"run {run_id} is {status}")
