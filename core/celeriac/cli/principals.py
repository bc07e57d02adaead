"""`celeriac principals`: who may decide what."""

from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, By, brief, print_json, print_table
from celeriac.cli.starting import parse_json
from celeriac.errors import InvalidInput

if TYPE_CHECKING:
    from celeriac.principal import Permissions


def principals(
    context: typer.Context,
    user: Annotated[
        str | None, typer.Argument(metavar="USER", help="Whose rights to set; else all are listed.")
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(help="A role that the person has; may stand several times.")
    ] = None,
    permissions: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="By tool, or * for all others, conditions on the arguments: "
            '\'{"refund": [["amount", "<=", "500"]]}\'. Without it there are no limits.',
        ),
    ] = None,
    disable: Annotated[bool, typer.Option("--disable", help="May decide nothing.")] = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """List who may decide what; or say it of one person, instead of what was said before."""
    with environment(context).client() as client:
        if user is None:
            if role or permissions is not None or disable:
                raise WrongUsage("name the USER whose rights these are")
            found = client.principals()
        else:
            found = [
                client.set_principal(
                    user,
                    roles=role or (),
                    permissions=None if permissions is None else _permissions(permissions),
                    disabled=disable,
                    by=by,
                )
            ]
    if as_json:
        for principal in found:
            print_json(principal)
        return
    print_table(
        ["user", "roles", "may decide", "version", "disabled"],
        [
            (
                each.user_id,
                ", ".join(each.roles),
                brief(dict(each.permissions), 200),
                each.version,
                "yes" if each.disabled else "",
            )
            for each in found
        ],
        empty="nobody is registered: who decides needs no role, or cannot decide",
    )


def _permissions(text: str) -> "Permissions":
    from celeriac.principal import permissions_from_json

    try:
        return permissions_from_json(parse_json(text, "--permissions"))
    except InvalidInput as error:
        raise WrongUsage(f"--permissions: {error}") from error
