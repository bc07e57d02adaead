"""What clients ask about budgets: what runs may use together."""

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from celeriac.budget import Allowance, Measure, OnExceeded, Scope, checked_measure
from celeriac.client.ask import Ask
from celeriac.client.named import user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Flow, get, post, put, refuse_speaker
from celeriac.ids import TenantId, UserId, checked_id
from celeriac.reports import Budget
from celeriac_storage import budget_limits

if TYPE_CHECKING:
    from celeriac.client.database import DatabaseDesk
    from celeriac.codec import JsonValue


@dataclass(frozen=True, slots=True)
class SetBudget(Operation[Budget]):
    """Say what may be used, instead of what was said before."""

    tenant_id: TenantId
    scope: Scope
    subject: str
    measure: Measure
    allowance: Allowance
    by: UserId

    def act(self, connection: Connection) -> Budget:
        return budget_limits.set_budget(
            connection,
            self.tenant_id,
            self.scope,
            self.subject,
            self.measure,
            self.allowance,
            self.by,
        )


@dataclass(frozen=True, slots=True)
class TopUpBudget(Operation[Budget]):
    """Add to a hard limit, once under a key."""

    tenant_id: TenantId
    scope: Scope
    subject: str
    measure: Measure
    amount: Decimal
    by: UserId
    key: str | None = None

    def act(self, connection: Connection) -> Budget:
        return budget_limits.top_up(
            connection,
            self.tenant_id,
            self.scope,
            self.subject,
            self.measure,
            self.amount,
            self.by,
            self.key,
        )


def list_budgets(scope: Scope | None = None, subject: str | None = None) -> Ask[list[Budget]]:
    """What runs may use together, and have used; of one scope or of one user, thread or run."""

    def in_database(desk: "DatabaseDesk") -> list[Budget]:
        return desk.read(
            lambda connection: budget_limits.list_budgets(
                connection, desk.tenant_id, scope=scope, subject=subject
            )
        )

    def over_http() -> Flow[list[Budget]]:
        told = yield get("/v1/budgets", scope=scope, subject=subject)
        return [reader(Budget)(each) for each in told["budgets"]]

    return Ask(in_database, over_http)


def set_budget(
    scope: Scope,
    subject: str,
    measure: Measure | str,
    *,
    hard_limit: Decimal | int | None = None,
    soft_limit: Decimal | int | None = None,
    on_exceeded: OnExceeded = "pause",
    by: str | None = None,
) -> Ask[Budget]:
    """Limit what the runs of a user or a thread, one run or all runs may use together, instead
    of how they were limited before. What was used stays counted (`docs/budgets.md`).

    It holds for steps that begin after this returns. Raises `InvalidInput` for limits that
    cannot be, `UnknownThread` or `UnknownRun`.
    """
    of, measured, person = _subject(subject), checked_measure(measure), user_or_default(by)
    allowance = Allowance(_decimal(hard_limit), _decimal(soft_limit), on_exceeded)

    def over_http() -> Flow[Budget]:
        refuse_speaker(by)
        body: dict[str, JsonValue] = {
            "hard_limit": _told(allowance.hard_limit),
            "soft_limit": _told(allowance.soft_limit),
            "on_exceeded": on_exceeded,
        }
        return reader(Budget)((yield put(_path(scope, of, measured), body)))

    return Ask(
        lambda desk: desk.perform(
            SetBudget(desk.tenant_id, scope, of, measured, allowance, person)
        ),
        over_http,
    )


def top_up_budget(
    scope: Scope,
    subject: str,
    measure: Measure | str,
    amount: Decimal | int,
    *,
    key: str | None = None,
    by: str | None = None,
) -> Ask[Budget]:
    """Add to the hard limit; runs that wait for it go on. With a `key` of your own it is safe
    to say it again after an error. Raises `UnknownBudget`, `InvalidInput` or `Conflict`."""
    of, measured, person = _subject(subject), checked_measure(measure), user_or_default(by)
    more = Decimal(amount)

    def over_http() -> Flow[Budget]:
        refuse_speaker(by)
        path = f"{_path(scope, of, measured)}/top-up"
        return reader(Budget)((yield post(path, {"amount": _told(more)}, key=key)))

    return Ask(
        lambda desk: desk.perform(
            TopUpBudget(desk.tenant_id, scope, of, measured, more, person, key)
        ),
        over_http,
    )


def _path(scope: Scope, subject: str, measure: Measure) -> str:
    return f"/v1/budgets/{scope}/{subject}/{measure}"


def _subject(subject: str) -> str:
    return checked_id(subject, "tenant, user, thread or run id")


def _decimal(limit: Decimal | int | None) -> Decimal | None:
    return None if limit is None else Decimal(limit)


def _told(amount: Decimal | None) -> str | None:
    return None if amount is None else str(amount)
