"""`/v1/budgets`: what runs may use together, what they have used, and more of it."""

from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from sqlalchemy import Connection

from celeriac.budget import Allowance, Measure, Scope
from celeriac.client.budgeting import SetBudget, TopUpBudget
from celeriac.errors import UnknownBudget, UnknownRun, UnknownThread
from celeriac.ids import RunId, ThreadId
from celeriac.reports import Budget
from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import require, sees_all
from celeriac_api.caller import Caller, service_of
from celeriac_api.idempotency import CurrentOrder, Reply
from celeriac_api.models import budgets as models
from celeriac_api.models.responses import answers
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage import budget_limits
from celeriac_storage.conversations import read_thread
from celeriac_storage.ownership import owner_of_run

router = APIRouter(prefix="/v1/budgets", tags=["budgets"], route_class=JsonRoute)

Subject = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$")]


@router.get("", responses=answers(200, models.Budgets, "By scope, id and measure"))
def list_budgets(
    request: Request,
    caller: CurrentCaller,
    scope: Scope | None = None,
    subject: Annotated[
        str | None,
        Query(pattern=r"^[A-Za-z0-9._@-]{1,128}$", description="The user, thread or run."),
    ] = None,
) -> Response:
    """List budgets: your own with those of your threads and runs, or all of the tenant for an
    operator."""
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        return json_response({"budgets": seen_budgets(connection, caller, scope, subject)})


def seen_budgets(
    connection: Connection, caller: Caller, scope: Scope | None, subject: str | None
) -> list[Budget]:
    """The budgets that the caller may see, of those that were asked for. Raises `RoleMissing` if
    what was named is not his."""
    owner = None if sees_all(caller, "list_budgets") else caller.user_id
    if owner is not None and (scope == "tenant" or (scope is not None and subject is not None)):
        require(caller, "list_budgets", is_own=_is_own(connection, caller, scope, subject))
    return budget_limits.list_budgets(
        connection, caller.tenant_id, scope=scope, subject=subject, owner=owner
    )


@router.put(
    "/{scope}/{subject}/{measure}", responses=answers(200, models.BudgetModel, "The budget")
)
def set_budget(
    scope: Scope, subject: Subject, measure: Measure, body: models.SetBudget, order: CurrentOrder
) -> Response:
    """Set the limits of a budget, instead of what they were. What is used stays counted."""
    caller = order.caller
    allowance = Allowance(_exact(body.hard_limit), _exact(body.soft_limit), body.on_exceeded)
    return order.carry_out(
        SetBudget(caller.tenant_id, scope, subject, measure, allowance, caller.user_id),
        _reply,
        lambda connection: _require(connection, order.action, caller, scope, subject),
    )


@router.post(
    "/{scope}/{subject}/{measure}/top-up",
    responses=answers(200, models.BudgetModel, "The budget"),
)
def top_up_budget(
    scope: Scope, subject: Subject, measure: Measure, body: models.TopUp, order: CurrentOrder
) -> Response:
    """Raise the hard limit; the runs that wait for it go on."""
    order.require_key()
    caller = order.caller
    return order.carry_out(
        TopUpBudget(
            caller.tenant_id, scope, subject, measure, Decimal(body.amount), caller.user_id
        ),
        _reply,
        lambda connection: _require(connection, order.action, caller, scope, subject),
    )


def _exact(amount: str | None) -> Decimal | None:
    return None if amount is None else Decimal(amount)


def _reply(budget: Budget) -> Reply:
    return Reply(200, budget)


def _require(
    connection: Connection, action: str, caller: Caller, scope: Scope, subject: str
) -> None:
    """Raise `UnknownBudget` if the caller may not see it, `RoleMissing` if he may not do this."""
    is_own = _is_own(connection, caller, scope, subject)
    if not is_own and not sees_all(caller, "list_budgets"):
        raise UnknownBudget(f"there is no budget of {scope} {subject}")
    require(caller, action, is_own=is_own)


def _is_own(
    connection: Connection, caller: Caller, scope: Scope | None, subject: str | None
) -> bool:
    """Whether it is the caller, or a thread or a run of his."""
    if subject is None:
        return False
    try:
        match scope:
            case "user":
                owner: str | None = subject
            case "thread":
                owner = read_thread(connection, caller.tenant_id, ThreadId(subject)).user_id
            case "run":
                owner = owner_of_run(connection, caller.tenant_id, RunId(subject))
            case _:
                owner = None
    except (UnknownThread, UnknownRun):
        owner = None
    return owner == caller.user_id
