"""`celeriac prune`: take away what old runs have left."""

from typing import Annotated

import typer

from celeriac.cli.environment import open_database
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, print_json

PRUNABLE = ("completed", "failed", "cancelled")


def prune(
    context: typer.Context,
    older_than: Annotated[
        float, typer.Option("--older-than", metavar="DAYS", help="Ended at least so long ago.")
    ],
    status: Annotated[
        list[str] | None,
        typer.Option(
            metavar="S", help="completed, failed or cancelled; may stand several times. Else all."
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(metavar="T", help="Of one tenant only.")] = None,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Runs of one transaction.")] = 100,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell how many runs it would be, and change nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take away what old runs have left: all but what says that they were and what they did.

    Runs with something still to come are left alone. An id that was used stays used. With them go
    vectors of memories, as old, that no agent's embedder compares any more.
    """
    from celeriac.ids import TenantId, checked_id
    from celeriac.states import RunStatus
    from celeriac_storage import pruning

    if unknown := set(status or ()) - set(PRUNABLE):
        raise WrongUsage(f"--status {min(unknown)}: give {', '.join(PRUNABLE)}")
    policy = pruning.Policy(
        older_than,
        [RunStatus(each) for each in status or PRUNABLE],
        None if tenant is None else TenantId(checked_id(tenant, "tenant id")),
    )
    with open_database(context) as database:
        with database.connect() as connection:
            extent = pruning.extent(connection, policy)
        if dry_run:
            if as_json:
                print_json(extent)
            else:
                typer.echo(
                    f"{extent.runs} runs would be pruned, and {extent.vectors} vectors of memories"
                )
            return

        def tell(done: pruning.Pruned) -> None:
            typer.echo(f"{done.runs} of {extent.runs} runs pruned", err=True)

        done = pruning.prune(database, policy, batch=batch, progress=tell)
    if as_json:
        print_json(
            {
                "runs": done.runs,
                "artifacts": done.artifacts,
                "vectors": done.vectors,
                "passed_over": done.passed_over,
            }
        )
    else:
        typer.echo(
            f"{done.runs} runs pruned, {done.passed_over} passed over, {done.vectors} vectors of "
            "memories deleted"
        )
