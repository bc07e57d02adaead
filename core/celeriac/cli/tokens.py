"""`celeriac token`: who may use the HTTP API."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli.environment import environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, By, print_json, print_table

if TYPE_CHECKING:
    from celeriac.reports import Token

token = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make, list and revoke the tokens of the HTTP API.",
)


@token.command()
def create(
    context: typer.Context,
    user: Annotated[str, typer.Option(metavar="USER", help="Who uses the API with it.")],
    name: Annotated[str, typer.Option(help="What it is for: the owner tells it by that.")] = "",
    role: Annotated[
        list[str] | None,
        typer.Option(help="user (default): own runs. operator: all of the tenant. admin: all."),
    ] = None,
    expires_days: Annotated[
        float | None, typer.Option(min=0, help="How long it is good; else until it is revoked.")
    ] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once: only its hash is stored."""
    from celeriac.roles import WORDS

    if unknown := set(role or ()) - set(WORDS):
        raise WrongUsage(f"--role {min(unknown)}: the roles are {', '.join(WORDS)}")
    with environment(context).client() as client:
        made = client.create_token(
            user, roles=role or (), name=name, expires_days=expires_days, by=by
        )
    if as_json:
        print_json(made)
        return
    typer.echo(made.token)
    typer.echo(
        f"It is shown this once; `celeriac token revoke {made.token_id}` ends it.",
        err=True,
    )


@token.command("list")
def list_(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tokens of the tenant, never what they are."""
    with environment(context).client() as client:
        found = client.tokens()
    if as_json:
        for each in found:
            print_json(each)
        return
    print_table(
        ["token", "begins", "user", "tenant", "roles", "name", "state", "last used"],
        [
            (
                each.token_id,
                f"{each.prefix}…",
                each.user_id,
                each.tenant_id,
                ", ".join(each.roles),
                each.name,
                _state(each),
                each.last_used_at,
            )
            for each in found
        ],
        empty="no token was made: nobody can use the API, unless with another issuer's",
    )


@token.command()
def revoke(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id, as `list` shows it.")],
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Let a token open nothing any more, from now on."""
    with environment(context).client() as client:
        revoked = client.revoke_token(token_id, by=by)
    if as_json:
        print_json(revoked)
    else:
        typer.echo(f"token {revoked.token_id} of {revoked.user_id} is revoked")


def _state(each: "Token") -> str:
    if each.revoked_at is not None:
        return "revoked"
    if each.expires_at is not None and each.expires_at <= datetime.now(UTC):
        return "expired"
    return "good"
