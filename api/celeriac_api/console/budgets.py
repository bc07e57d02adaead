"""Budgets as bars: what was used, what is reserved, who waits for room, and more of it."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from celeriac.budget import Measure, Scope
from celeriac.ids import RunId, UserId
from celeriac.reports import Budget
from celeriac_api import budgets as api
from celeriac_api.authorization import RULES, role_of, sees_all
from celeriac_api.caller import Caller, service_of
from celeriac_api.console.forms import PostedForm, body_of
from celeriac_api.console.pages import PageRoute, render, see
from celeriac_api.console.sessions import CurrentUser
from celeriac_api.models.budgets import TopUp
from celeriac_storage import budget_limits

router = APIRouter(prefix="/budgets", route_class=PageRoute)

SCOPES: tuple[Scope, ...] = ("tenant", "user", "thread", "run")
WIDTH = 1000  # of a bar, in its own units
TONES = {"waited for": "bad", "used up": "bad", "nearly used up": "wait", "open": "good"}

Subject = Annotated[str, Query(max_length=128, pattern=r"^[A-Za-z0-9._@-]*$")]


@dataclass(frozen=True, slots=True)
class Bar:
    """How much of a budget is gone, and where its limits are: lengths of `WIDTH`."""

    used: int
    reserved: int  # after what is used
    soft: int | None  # where its soft limit is
    hard: int | None  # where its hard limit is, if more than that is gone

    @classmethod
    def of(cls, budget: Budget) -> "Bar":
        gone = budget.used + budget.reserved
        whole = max(gone, budget.hard_limit or 0, budget.soft_limit or 0) or Decimal(1)

        def length(amount: Decimal) -> int:
            return int(amount * WIDTH / whole)

        is_passed = budget.hard_limit is not None and gone > budget.hard_limit
        return cls(
            length(budget.used),
            length(gone) - length(budget.used),
            None if budget.soft_limit is None else length(budget.soft_limit),
            length(budget.hard_limit) if is_passed and budget.hard_limit is not None else None,
        )


def state_of(budget: Budget) -> str:
    """A word for how full it is."""
    gone = budget.used + budget.reserved
    if budget.waiting_runs:
        return "waited for"
    if budget.hard_limit is not None and gone >= budget.hard_limit:
        return "used up"
    if budget.soft_limit is not None and gone >= budget.soft_limit:
        return "nearly used up"
    return "open"


def left_of(budget: Budget) -> Decimal | None:
    """How much may be used yet; None without a limit."""
    if budget.hard_limit is None:
        return None
    return max(budget.hard_limit - budget.used - budget.reserved, Decimal(0))


@router.get("", name="list_budgets")
def budgets_page(
    request: Request,
    caller: CurrentUser,
    scope: Literal["tenant", "user", "thread", "run", ""] = "",
    subject: Subject = "",
) -> Response:
    """Those that the caller sees: his own, or an operator's all. An empty filter is none."""
    owner = None if sees_all(caller, "list_budgets") else caller.user_id
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        found = api.seen_budgets(connection, caller, scope or None, subject or None)
        waiters = budget_limits.list_waiters(connection, caller.tenant_id, owner)
    return render(
        request,
        "budgets.html",
        budgets={each: [found_one for found_one in found if found_one.scope == each]
                 for each in SCOPES},
        waiters=waiters,
        scope=scope,
        subject=subject,
        scopes=SCOPES if owner is None else SCOPES[1:],
        sees_all=owner is None,
        **how_shown(caller),
    )  # fmt: skip


@router.post("/{scope}/{subject}/{measure}/top-up", name="top_up_budget")
def top_up(scope: Scope, subject: api.Subject, measure: Measure, form: PostedForm) -> Response:
    body = body_of(TopUp, amount=form.text("amount").strip())
    api.top_up_budget(scope, subject, measure, body, form.order(body))
    return see("/budgets?" + urlencode({"scope": scope, "subject": subject}))


def how_shown(caller: Caller) -> dict[str, Any]:
    """What the part of a page that shows a budget needs besides the budget."""
    return {
        "bar_of": Bar.of,
        "left_of": left_of,
        "state_of": state_of,
        "tones": TONES,
        "width": WIDTH,
        "may_top_up": role_of(caller) >= RULES["top_up_budget"].others,
    }


def awaited_by(
    connection: Connection, caller: Caller, run_id: RunId, owner: UserId
) -> Budget | None:
    """The budget that a run of `owner`, whom the caller sees, waits for; None too if what others
    have used of it, as of the tenant's, is not the caller's to know."""
    budget = budget_limits.awaited_by(connection, run_id)
    if budget is None or sees_all(caller, "list_budgets"):
        return budget
    return budget if budget.scope != "tenant" and owner == caller.user_id else None
