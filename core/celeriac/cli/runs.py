"""`celeriac show` and `celeriac runs`."""

from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.output import AsJson, RunArgument, console, print_json, print_table
from celeriac.states import RunStatus

if TYPE_CHECKING:
    from celeriac.client import Client
    from celeriac.reports import Run


def show(
    context: typer.Context,
    run_id: RunArgument,
    by: Annotated[
        str | None,
        typer.Option("--as", metavar="USER", help="Who looks: recorded with pending proposals."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a run with its steps and effects, and what it waits for."""
    with environment(context).client() as client:
        run = client.get(run_id)
        if by is not None and any(proposal.status == "pending" for proposal in run.approvals):
            client.approvals(run_id=run_id, by=by)  # records that they are shown
        print_run(client, run, as_json=as_json)


def runs(
    context: typer.Context,
    status: Annotated[RunStatus | None, typer.Option(help="Only runs of this status.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    activities: Annotated[
        bool, typer.Option("--activities", help="Also those of workflows' activities.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first. Of workflows' activities only those that need attention, if
    these are asked for by --status."""
    with environment(context).client() as client:
        found = client.runs(status=status, agent=agent, with_activities=activities, limit=limit)
    if as_json:
        for run in found:
            print_json(run)
        return
    print_table(
        ["run", "agent", "status", "phase", "outcome", "step", "deaths", "thread", "created"],
        [
            (
                run.run_id,
                run.agent,
                run.status,
                run.phase,
                run.outcome,
                run.step,
                run.deaths,
                run.thread_id,
                run.created_at,
            )
            for run in found
        ],
        empty="no runs",
    )


def print_run(client: "Client", run: "Run", *, as_json: bool) -> None:
    """Print the run as the contract's JSON, or for people with what it waits for."""
    if as_json:
        print_json(run)
        return
    from celeriac.cli.drawing import draw_run
    from celeriac.cli.words import waiting_for

    console().print(draw_run(run, waiting_for(run, client.waits_for(run.run_id))))
