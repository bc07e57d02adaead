"""What people are shown and decide, each in transactions of its own."""

from collections.abc import Sequence
from typing import get_args

from celeriac.errors import CeleriacError, DatabaseUnavailable, InvalidInput, UnknownApproval
from celeriac.ids import DEFAULT_TENANT, ApprovalId, RunId, UserId
from celeriac.principal import Permissions
from celeriac.reports import Approval, Decided, Principal
from celeriac.states import ApprovalStatus
from celeriac_storage import approvals, deciding, principals
from celeriac_storage.database import Database
from celeriac_storage.rulings import Decision


def show_approvals(
    database: Database, *, status: str | None, run_id: RunId | None, limit: int, to: UserId
) -> list[Approval]:
    """Proposals, the oldest first; that this person is shown the pending ones is recorded.

    Raises `InvalidInput` for a status that there is not: its list would always be empty.
    """
    if status is not None and status not in get_args(ApprovalStatus):
        raise InvalidInput(
            f"{status!r} is no status of a proposal: give one of "
            f"{', '.join(get_args(ApprovalStatus))}, or None for all"
        )
    with database.connect() as connection:
        shown = approvals.list_approvals(
            connection, DEFAULT_TENANT, status=status, run_id=run_id, limit=limit
        )
    _surface(database, shown, to)
    return shown


def show_approval(database: Database, approval_id: ApprovalId, to: UserId) -> Approval:
    """One of them. Raises `UnknownApproval`."""
    with database.connect() as connection:
        shown = approvals.read(connection, DEFAULT_TENANT, approval_id)
    _surface(database, [shown], to)
    return shown


def decide(database: Database, approval_id: ApprovalId, decision: Decision) -> Decided:
    """Decide, or record that this was refused, and raise why."""
    try:
        with database.begin() as connection:
            return deciding.decide(connection, DEFAULT_TENANT, approval_id, decision)
    except (DatabaseUnavailable, UnknownApproval):
        raise
    except CeleriacError as refused:
        with database.begin() as connection:
            deciding.record_denial(connection, DEFAULT_TENANT, approval_id, decision, refused)
        raise


def set_principal(
    database: Database,
    user_id: UserId,
    roles: Sequence[str],
    permissions: Permissions,
    *,
    is_disabled: bool,
    by: UserId,
) -> Principal:
    with database.begin() as connection:
        return principals.set_principal(
            connection,
            DEFAULT_TENANT,
            user_id,
            roles=roles,
            permissions=permissions,
            is_disabled=is_disabled,
            by=by,
        )


def list_principals(database: Database) -> list[Principal]:
    with database.connect() as connection:
        return principals.list_principals(connection, DEFAULT_TENANT)


def _surface(database: Database, shown: Sequence[Approval], to: UserId) -> None:
    with database.connect() as connection:
        new = approvals.not_yet_shown(connection, shown, to)
    for each in new:  # a transaction for each: it locks a run
        with database.begin() as connection:
            approvals.surface(connection, DEFAULT_TENANT, each, to)
