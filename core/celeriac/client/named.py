"""The ids that a caller names, checked before anybody is asked.

What can be no id is told of as any other unknown one.
"""

from celeriac.errors import UnknownApproval, UnknownCall, UnknownRun
from celeriac.ids import (
    DEFAULT_TENANT,
    DEFAULT_USER,
    ApprovalId,
    CallId,
    RunId,
    ScheduleId,
    TenantId,
    UserId,
    checked_id,
    is_id,
)
from celeriac_storage.schedules import unknown_schedule


def user_named(user_id: str) -> UserId:
    """Raises `InvalidInput` for what is no id."""
    return UserId(checked_id(user_id, "user id"))


def user_or_default(user_id: str | None) -> UserId:
    """Who says so, where it need not be said. Raises `InvalidInput` for what is no id."""
    return DEFAULT_USER if user_id is None else user_named(user_id)


def tenant_or_default(tenant: str | None) -> TenantId:
    """Raises `InvalidInput` for what is no id."""
    return DEFAULT_TENANT if tenant is None else TenantId(checked_id(tenant, "tenant id"))


def run_named(run_id: str) -> RunId:
    if not is_id(run_id):
        raise UnknownRun(f"there is no run {run_id!r}; `celeriac runs` lists the latest")
    return RunId(run_id)


def call_named(call_id: str) -> CallId:
    if not is_id(call_id):
        raise UnknownCall(f"there is no call {call_id!r}; `celeriac show RUN` names those of a run")
    return CallId(call_id)


def schedule_named(schedule_id: str) -> ScheduleId:
    if not is_id(schedule_id):
        raise unknown_schedule(schedule_id)
    return ScheduleId(schedule_id)


def proposal_named(approval_id: str) -> ApprovalId:
    if not is_id(approval_id):
        raise UnknownApproval(
            f"there is no proposal {approval_id!r}; `celeriac approvals` lists those that wait"
        )
    return ApprovalId(approval_id)
