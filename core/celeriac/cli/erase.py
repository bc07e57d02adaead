"""`celeriac erase`: forget a user, a thread or a tenant."""

from typing import TYPE_CHECKING, Annotated

import typer

from celeriac.cli.environment import open_database
from celeriac.cli.output import AsJson, By, print_json

if TYPE_CHECKING:
    from celeriac_storage.erasing import Scope

erase = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Erase all payloads of a user, a thread or a tenant, for good.",
)

Cancel = Annotated[
    bool, typer.Option("--cancel", help="Cancel runs that go on, instead of refusing.")
]
Tenant = Annotated[str, typer.Option(metavar="T", help="Whose it is.")]


@erase.command()
def user(
    context: typer.Context,
    user_id: Annotated[str, typer.Argument(metavar="USER")],
    tenant: Tenant = "default",
    cancel: Cancel = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Forget all that a user said and what came of it. That it happened stays."""
    from celeriac.ids import TenantId, UserId, checked_id
    from celeriac_storage.erasing import Scope

    scope = Scope(TenantId(checked_id(tenant, "tenant id")), UserId(checked_id(user_id, "user id")))
    _erase(context, scope, cancel, by, as_json)


@erase.command()
def thread(
    context: typer.Context,
    thread_id: Annotated[str, typer.Argument(metavar="THREAD")],
    tenant: Tenant = "default",
    cancel: Cancel = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Forget one conversation."""
    from celeriac.ids import TenantId, ThreadId, checked_id
    from celeriac_storage.erasing import Scope

    scope = Scope(
        TenantId(checked_id(tenant, "tenant id")),
        thread_id=ThreadId(checked_id(thread_id, "thread id")),
    )
    _erase(context, scope, cancel, by, as_json)


@erase.command("tenant")
def whole_tenant(
    context: typer.Context,
    tenant_id: Annotated[str, typer.Argument(metavar="TENANT")],
    cancel: Cancel = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Forget everything of a tenant."""
    from celeriac.ids import TenantId, checked_id
    from celeriac_storage.erasing import Scope

    _erase(context, Scope(TenantId(checked_id(tenant_id, "tenant id"))), cancel, by, as_json)


def _erase(
    context: typer.Context, scope: "Scope", cancel: bool, by: str | None, as_json: bool
) -> None:
    from celeriac.client import user_or_default
    from celeriac_storage import erasing

    with open_database(context) as database:
        done = erasing.erase(database, scope, user_or_default(by), cancels=cancel)
    if as_json:
        print_json(done)
        return
    typer.echo(f"{done.runs} runs erased, and {done.answers} answers to API requests")
    if done.artifacts_waiting:
        typer.echo(
            f"{done.artifacts_waiting} large values go within the hour, by `celeriac prune` or a "
            "scheduler that prunes",
            err=True,
        )
