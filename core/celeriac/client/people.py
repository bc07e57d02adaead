"""What people are shown, in transactions of its own."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import get_args

from celeriac.errors import InvalidInput
from celeriac.ids import ApprovalId, RunId, TenantId, UserId
from celeriac.reports import Approval
from celeriac.states import ApprovalStatus
from celeriac_storage import approvals
from celeriac_storage.tenancy import Transactions


def show_approvals(
    transactions: Transactions,
    tenant_id: TenantId,
    *,
    status: str | None = None,
    run_id: RunId | None = None,
    after: tuple[datetime, ApprovalId] | None = None,
    limit: int,
    to: UserId,
    is_shown: Callable[[Approval], bool] = lambda _: True,
) -> list[Approval]:
    """Proposals, the oldest first, except those that are not to be shown to this person; that the
    pending ones are is recorded. Raises as `list_approvals`."""
    shown = list_approvals(
        transactions, tenant_id, status=status, run_id=run_id, after=after, limit=limit,
        is_listed=is_shown,
    )  # fmt: skip
    _surface(transactions, tenant_id, shown, to)
    return shown


def list_approvals(
    transactions: Transactions,
    tenant_id: TenantId,
    *,
    status: str | None = None,
    run_id: RunId | None = None,
    after: tuple[datetime, ApprovalId] | None = None,
    limit: int,
    is_listed: Callable[[Approval], bool] = lambda _: True,
) -> list[Approval]:
    """The same where it is not they that are shown, but what there is to see.

    Raises `InvalidInput` for a status that there is not: its list would always be empty.
    """
    check_status(status)
    listed: list[Approval] = []
    while True:
        with transactions.begin() as connection:
            found = approvals.list_approvals(
                connection, tenant_id, status=status, run_id=run_id, after=after, limit=limit
            )
        listed += filter(is_listed, found)
        if len(listed) >= limit or len(found) < limit:
            return listed[:limit]
        after = (found[-1].created_at, found[-1].approval_id)


def show_approval(
    transactions: Transactions,
    tenant_id: TenantId,
    approval_id: ApprovalId,
    to: UserId,
    check: Callable[[Approval], None] = lambda _: None,
) -> Approval:
    """One of them, unless `check` raises. Raises `UnknownApproval`."""
    with transactions.begin() as connection:
        shown = approvals.read(connection, tenant_id, approval_id)
    check(shown)
    _surface(transactions, tenant_id, [shown], to)
    return shown


def check_status(status: str | None) -> None:
    """Raise `InvalidInput` for a status that no proposal has."""
    if status is not None and status not in get_args(ApprovalStatus):
        raise InvalidInput(
            f"{status!r} is no status of a proposal: give one of "
            f"{', '.join(get_args(ApprovalStatus))}, or None for all"
        )


def _surface(
    transactions: Transactions, tenant_id: TenantId, shown: Sequence[Approval], to: UserId
) -> None:
    with transactions.begin() as connection:
        new = approvals.not_yet_shown(connection, shown, to)
    for each in new:  # a transaction for each: it locks a run
        with transactions.begin() as connection:
            approvals.surface(connection, tenant_id, each, to)
