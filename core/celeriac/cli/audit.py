"""`celeriac audit`."""

from typing import Annotated

import typer

from celeriac.cli.environment import database_url, environment
from celeriac.cli.output import AsJson, print_json, print_table


def audit(
    context: typer.Context,
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="One run only, else all.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check what must always hold, on a live database. Exits with 1 if something does not."""
    from celeriac.ids import RunId, checked_id
    from celeriac_storage.audit import audit as check
    from celeriac_storage.database import Database
    from celeriac_storage.reading import read_position
    from celeriac_storage.schema import check_schema

    database = Database(database_url(environment(context).settings()), connections=1)
    try:
        check_schema(database)
        if run_id is not None:
            # Of no rows at all everything holds, so a mistyped id would pass as sound.
            with database.connect() as connection:
                read_position(connection, RunId(checked_id(run_id, "run id")))
        violations = check(database, None if run_id is None else RunId(run_id))
    finally:
        database.close()
    if as_json:
        print_json({"ok": not violations, "violations": violations})
    else:
        print_table(
            ["invariant", "run", "what is wrong"],
            [(found.invariant, found.run_id, found.detail) for found in violations],
            empty="everything holds",
        )
    raise typer.Exit(1 if violations else 0)
