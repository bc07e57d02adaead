"""`celeriac budgets`: what runs may use together, what they have used, and more of it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from celeriac.budget import Measure, OnExceeded, Scope, amount
from celeriac.cli.environment import environment
from celeriac.cli.group import WrongUsage
from celeriac.cli.output import AsJson, By, print_json, print_table
from celeriac.errors import InvalidInput

if TYPE_CHECKING:
    from decimal import Decimal

    from celeriac.reports import Budget

budgets = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List and set budgets, and top them up.",
)

ScopeArgument = Annotated[str, typer.Argument(metavar="SCOPE", help="tenant, user, thread or run.")]
SubjectArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Of the tenant, user, thread or run.")
]
MeasureArgument = Annotated[Measure, typer.Argument(metavar="MEASURE", help=", ".join(Measure))]


class _OnExceeded(StrEnum):
    PAUSE = "pause"
    FAIL = "fail"


@budgets.command("list")
def list_(
    context: typer.Context,
    scope: Annotated[str | None, typer.Option(help="Only those of this scope.")] = None,
    subject: Annotated[
        str | None, typer.Option("--id", help="Only those of this user, thread or run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List budgets and what is used of them."""
    with environment(context).client() as client:
        found = client.budgets(None if scope is None else _scope(scope), subject)
    _print(found, as_json=as_json)


@budgets.command("set")
def set_(
    context: typer.Context,
    scope: ScopeArgument,
    subject: SubjectArgument,
    measure: MeasureArgument,
    hard: Annotated[
        str | None, typer.Option(metavar="N", help="No step begins that may pass it.")
    ] = None,
    soft: Annotated[
        str | None, typer.Option(metavar="N", help="The run's history says when it is reached.")
    ] = None,
    on_exceeded: Annotated[
        _OnExceeded, typer.Option(help="Whether a run then waits for a top-up, or ends.")
    ] = _OnExceeded.PAUSE,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Set the limits of a budget, instead of what they were. What is used stays counted."""
    policy: OnExceeded = "fail" if on_exceeded is _OnExceeded.FAIL else "pause"
    with environment(context).client() as client:
        made = client.set_budget(
            _scope(scope),
            subject,
            measure,
            hard_limit=None if hard is None else _amount(hard, "--hard"),
            soft_limit=None if soft is None else _amount(soft, "--soft"),
            on_exceeded=policy,
            by=by,
        )
    _print([made], as_json=as_json)


@budgets.command("top-up")
def top_up(
    context: typer.Context,
    scope: ScopeArgument,
    subject: SubjectArgument,
    measure: MeasureArgument,
    more: Annotated[str, typer.Argument(metavar="AMOUNT", help="What the hard limit grows by.")],
    key: Annotated[
        str | None, typer.Option(help="A name for this top-up: told again, it is made once.")
    ] = None,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Raise the hard limit of a budget; the runs that wait for it go on."""
    with environment(context).client() as client:
        made = client.top_up_budget(
            _scope(scope), subject, measure, _amount(more, "AMOUNT"), key=key, by=by
        )
    _print([made], as_json=as_json)


def _print(found: "Sequence[Budget]", *, as_json: bool) -> None:
    if as_json:
        for each in found:
            print_json(each)
        return
    print_table(
        ["scope", "id", "measure", "used", "reserved", "in doubt", "soft", "hard", "then", "wait"],
        [
            (
                each.scope,
                each.subject,
                each.measure,
                _plain(each.used),
                _plain(each.reserved),
                _plain(each.in_doubt),
                _plain(each.soft_limit),
                _plain(each.hard_limit),
                each.on_exceeded,
                each.waiting_runs,
            )
            for each in found
        ],
        empty="no budgets: runs are limited only by their own limits",
    )


def _plain(number: "Decimal | None") -> str:
    return "" if number is None else f"{number.normalize():,f}"


def _scope(word: str) -> Scope:
    for scope in get_args(Scope):
        if scope == word:
            found: Scope = scope
            return found
    raise WrongUsage(f"{word!r} is no scope: give one of {', '.join(get_args(Scope))}")


def _amount(text: str, what: str) -> "Decimal":
    try:
        return amount(text, what)
    except InvalidInput as error:
        raise WrongUsage(str(error)) from error
