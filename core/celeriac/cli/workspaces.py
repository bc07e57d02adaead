"""`celeriac workspaces`: the folder of workspaces, what was done in one, and taking it back."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.output import AsJson, print_json, print_table
from celeriac.errors import UnknownRun

if TYPE_CHECKING:
    from celeriac.workspace.place import Workspace

workspaces = typer.Typer(
    no_args_is_help=True, help="Files that runs work on: what was done, and taking it back."
)

RunId = Annotated[str, typer.Argument(metavar="RUN")]


@workspaces.command()
def prepare(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Else CELERIAC_WORKSPACES.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a folder one that holds workspaces; what is in it stays. Workers use no other."""
    from celeriac.workspace.place import prepare as make
    from celeriac.workspace.place import workspaces_path

    given = folder or workspaces_path(environment(context).named_settings())
    make(given.absolute())
    if as_json:
        print_json({"folder": str(given.absolute())})
    else:
        typer.echo(f"workspaces can be made in {given.absolute()}")


@workspaces.command()
def show(context: typer.Context, run_id: RunId, as_json: AsJson = False) -> None:
    """Tell what was done in a run's workspace, oldest first, by this run and by others."""
    from celeriac.workspace.records import all_records, to_json

    found = all_records(_workspace(context, run_id))
    if as_json:
        for record in found:
            print_json(to_json(record))
        return
    print_table(
        ["snapshot before", "tool", "run", "call", "done", "paths"],
        [
            (
                record.snapshot,
                record.tool,
                record.run_id,
                record.call_id,
                "yes" if record.is_done else "no",
                ", ".join(change.path for change in record.changes),
            )
            for record in found
        ],
        empty="nothing",
    )


@workspaces.command()
def rollback(
    context: typer.Context,
    run_id: RunId,
    to: Annotated[
        str,
        typer.Option("--to", metavar="SNAPSHOT", help="The whole hash, as `show` tells it."),
    ],
    as_json: AsJson = False,
) -> None:
    """Take back what was done since a snapshot, where the files still are what agents wrote.

    Other files are left alone and reported. The run's own record in the database does not change.
    """
    from celeriac.workspace.rollback import roll_back

    report = roll_back(_workspace(context, run_id), to)
    if as_json:
        print_json(report)
        return
    lists = [
        (did, path if isinstance(path, str) else f"{path['path']}: {path['why']}")
        for did in ("restored", "removed", "kept", "failed", "lost_commands")
        if isinstance(told := report[did], list)
        for path in told
        if isinstance(path, str | dict)
    ]
    print_table(["", "path"], lists, empty="there was nothing to take back")


def _workspace(context: typer.Context, run_id: str) -> "Workspace":
    from celeriac.ids import DEFAULT_TENANT
    from celeriac.workspace.place import of_run, workspaces_path

    top = workspaces_path(environment(context).named_settings())
    found = of_run(DEFAULT_TENANT, run_id, top)
    if found is None:
        raise UnknownRun(
            f"run {run_id} has changed nothing in any workspace that is kept in {top}; "
            "CELERIAC_WORKSPACES or --data name another folder"
        )
    return found
