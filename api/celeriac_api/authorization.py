"""Who may do what: the one table of it, and whose runs and threads somebody sees.

A role includes those before it: `user`, `operator`, `admin`. Whoever has a good token is at least a
`user`. What is not yours and that you may not see does not exist for you: 404, with the words of
one that really is not there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request
from sqlalchemy import Connection

from celeriac.errors import RoleMissing
from celeriac.ids import RunId, UserId, is_id
from celeriac.roles import Role
from celeriac_api.caller import Caller, caller_of, service_of
from celeriac_storage.ownership import owner_of_run
from celeriac_storage.requests import unknown_run
from celeriac_storage.schedules import owner_of as owner_of_schedule
from celeriac_storage.schedules import unknown_schedule


@dataclass(frozen=True, slots=True)
class Rule:
    """The least role for what is one's own, and for what is another user's of the tenant."""

    own: Role
    others: Role


_OWN = Rule(Role.USER, Role.OPERATOR)

RULES: Mapping[str, Rule] = {
    "start_run": _OWN,  # another's: for another user
    "list_runs": _OWN,
    "show_run": _OWN,
    "replay_run": _OWN,
    "compare_runs": _OWN,
    "follow_events": _OWN,
    "cancel_run": _OWN,
    "interrupt_run": _OWN,
    "say_to_run": _OWN,
    "send_event": _OWN,
    "retry_run": _OWN,
    "fork_run": _OWN,
    "submit_results": _OWN,
    "show_plan": _OWN,
    "retry_plan": _OWN,
    "roll_back_run": _OWN,  # and as whoever may decide its calls (celeriac_storage.rollbacks)
    # Whoever says that a call was not done has it made again: nobody says it of his own run.
    "resolve_call": Rule(Role.OPERATOR, Role.OPERATOR),
    "list_threads": _OWN,
    "show_thread": _OWN,
    "add_schedule": _OWN,  # another's: that starts runs for another user
    "list_schedules": _OWN,
    "show_schedule": _OWN,
    "pause_schedule": _OWN,
    "resume_schedule": _OWN,
    "trigger_schedule": _OWN,
    "remove_schedule": _OWN,
    "list_timers": _OWN,
    "list_workers": Rule(Role.OPERATOR, Role.OPERATOR),  # they serve all tenants
    "list_memories": _OWN,
    "show_memory": _OWN,
    "remember": _OWN,
    "forget": _OWN,
    "list_memory_decisions": _OWN,
    "export_memories": _OWN,
    # Besides what principals say (`celeriac principals`), who decide for all users of the tenant.
    "list_approvals": _OWN,
    "show_approval": _OWN,
    "decide_approval": Rule(Role.USER, Role.USER),
    # Whose rights and whose tokens these are makes no difference.
    "list_principals": Rule(Role.ADMIN, Role.ADMIN),
    "set_principal": Rule(Role.ADMIN, Role.ADMIN),
    "list_tokens": Rule(Role.ADMIN, Role.ADMIN),
    "create_token": Rule(Role.ADMIN, Role.ADMIN),
    "revoke_token": Rule(Role.ADMIN, Role.ADMIN),
    "erase_user": Rule(Role.ADMIN, Role.ADMIN),
    "list_budgets": _OWN,
    # Nobody raises the limit that is set to himself, unless it is his to set those of all.
    "set_budget": Rule(Role.OPERATOR, Role.OPERATOR),
    "top_up_budget": Rule(Role.OPERATOR, Role.OPERATOR),
}
"""By the name of the endpoint. docs/api.md has it as a table, which a test compares."""


def role_of(caller: Caller) -> Role:
    """The highest of the caller's roles that are ours; other names mean nothing here."""
    return max((role for role in Role if role.word in caller.roles), default=Role.USER)


def require(caller: Caller, action: str, *, is_own: bool) -> None:
    """Raise `RoleMissing` unless the caller may do this with what is his own, or another's."""
    needed = RULES[action].own if is_own else RULES[action].others
    if role_of(caller) < needed:
        whose = "" if is_own else " for another user"
        raise RoleMissing(f"{action}{whose} takes the role {needed.word}")


def sees_all(caller: Caller, action: str) -> bool:
    """Whether the caller may do this with what is another user's as well."""
    return role_of(caller) >= RULES[action].others


def require_run(connection: Connection, caller: Caller, action: str, run_id: RunId) -> None:
    """Raise `UnknownRun` unless the caller may see the run, `RoleMissing` unless he may do this.

    Neither the owner nor the tenant of a run ever changes, so this holds for the whole transaction.
    """
    owner = owner_of_run(connection, caller.tenant_id, run_id) if is_id(run_id) else None
    if owner is None:
        raise unknown_run(run_id)
    is_own = owner == caller.user_id
    if not is_own and not sees_all(caller, "show_run"):
        raise unknown_run(run_id)
    require(caller, action, is_own=is_own)


def require_schedule(connection: Connection, caller: Caller, action: str, schedule_id: str) -> None:
    """Raise `UnknownSchedule` unless the caller may see the schedule, `RoleMissing` unless he may
    do this. Needs the transaction in which he does it."""
    owner = None
    if is_id(schedule_id):
        owner = owner_of_schedule(connection, caller.tenant_id, schedule_id)
    if owner is None or (owner != caller.user_id and not sees_all(caller, "show_schedule")):
        raise unknown_schedule(schedule_id)
    require(caller, action, is_own=owner == caller.user_id)


def visible_run(request: Request, run_id: str, action: str = "follow_events") -> RunId:
    """The run, if the request's caller may do this with it. Reads the database: call it in a
    thread. Raises as `require_run`."""
    caller = caller_of(request)
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        require_run(connection, caller, action, RunId(run_id))
    return RunId(run_id)


def user_to_see(caller: Caller, action: str, asked: str | None) -> UserId | None:
    """Whose things a list may hold: those of the user that was asked for, or of all (None)."""
    if sees_all(caller, action):
        return None if asked is None else UserId(asked)
    if asked is not None and asked != caller.user_id:
        require(caller, action, is_own=False)
    return caller.user_id
