"""Every denial is a row of the audit trail: who was refused what.

Of a caller who is known, that is. A token that opens nothing has no tenant in whose trail it could
stand: those are counted by address (`celeriac_api.strangers`).
"""

from fastapi import Request

from celeriac.errors import (
    CeleriacError,
    NotAllowed,
    RoleMissing,
    UnknownApproval,
    UnknownBudget,
    UnknownMemory,
    UnknownRun,
    UnknownSchedule,
    UnknownThread,
    UnknownToken,
    WrongOwner,
)
from celeriac_api.caller import Caller, service_of
from celeriac_storage import audit_trail

_DENIALS = (
    RoleMissing,
    UnknownApproval,
    UnknownMemory,
    UnknownBudget,
    UnknownRun,
    UnknownSchedule,
    UnknownThread,
    UnknownToken,
)
"""Whoever asks for what he may not see is told that it is not there: so all of that is recorded. A
refused decision and a refused start record themselves (`celeriac.client.operation`)."""

LONGEST_OBJECT_CHARACTERS = 128


def note(request: Request, error: CeleriacError, status: int) -> None:
    """Record the denial, if it is one."""
    caller = getattr(request.state, "caller", None)
    is_denial = isinstance(error, _DENIALS) or (
        isinstance(error, NotAllowed) and request.method == "GET"  # to see a proposal
    )
    if isinstance(error.__cause__, WrongOwner):
        is_denial = False  # a start, which has recorded it
    if not is_denial or not isinstance(caller, Caller):
        return
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        audit_trail.note_denial(
            connection,
            caller.tenant_id,
            caller.user_id,
            _action(request),
            _object(request),
            error=type(error).__name__,
            status=status,
            token=caller.token_id,
        )


def _action(request: Request) -> str:
    route = request.scope.get("route")
    return f"http.{getattr(route, 'name', 'unknown')}"


def _object(request: Request) -> str:
    """The id that was asked for; where there is none in the address, the address."""
    named = next(iter(request.path_params.values()), request.url.path)
    printable = str(named).encode("ascii", "backslashreplace").decode().replace("\0", "\\0")
    return printable[:LONGEST_OBJECT_CHARACTERS]
