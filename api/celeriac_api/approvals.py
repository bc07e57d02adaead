"""`/v1/approvals`: what waits for a person, and what that person says."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from celeriac.approval import Requirement
from celeriac.client import people
from celeriac.client.proposal import Decide
from celeriac.errors import NotAllowed, UnknownApproval
from celeriac.ids import ApprovalId, RunId, is_id
from celeriac.principal import Principal
from celeriac.reports import Approval
from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import require, sees_all
from celeriac_api.caller import Caller, service_of
from celeriac_api.idempotency import CurrentOrder, Reply
from celeriac_api.models import approvals as models
from celeriac_api.models.responses import answers
from celeriac_api.pages import Cursor, Limit, cursor_after, cut, place_of
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage import principals
from celeriac_storage.rulings import Approve, Decision, Edit, Reject

router = APIRouter(prefix="/v1/approvals", tags=["approvals"], route_class=JsonRoute)

Status = Literal[
    "pending", "approved", "rejected", "expired", "cancelled", "superseded", "revoked", "any"
]


@router.get("", responses=answers(200, models.ApprovalPage, "The oldest first"))
def list_approvals(
    request: Request,
    caller: CurrentCaller,
    status: Status = "pending",
    run_id: Annotated[str | None, Query(pattern=r"^[A-Za-z0-9._@-]{1,128}$")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List proposals: those of your own runs and those that you may decide, or all of the tenant
    for an operator. That you were shown the pending ones is recorded."""
    place = place_of(cursor)
    person = person_of(request, caller)
    found = people.show_approvals(
        service_of(request).tenant(caller.tenant_id),
        caller.tenant_id,
        status=None if status == "any" else status,
        run_id=None if run_id is None else RunId(run_id),
        after=None if place is None else (place[0], ApprovalId(place[1])),
        limit=limit + 1,
        to=caller.user_id,
        is_shown=lambda proposal: hiding(caller, person, proposal) is None,
    )
    approvals, has_more = cut(found, limit)
    last = approvals[-1] if has_more else None
    next_cursor = None if last is None else cursor_after(last.created_at, last.approval_id)
    return json_response({"approvals": list(approvals), "next_cursor": next_cursor})


@router.get("/{approval_id}", responses=answers(200, models.ApprovalModel, "The proposal"))
def show_approval(request: Request, approval_id: str, caller: CurrentCaller) -> Response:
    """One proposal. That you were shown it is recorded."""
    return json_response(shown_approval(request, caller, approval_id))


def shown_approval(request: Request, caller: Caller, approval_id: str) -> Approval:
    """The proposal, which the caller is shown: that is recorded. Raises `UnknownApproval` or
    `NotAllowed`."""
    person = person_of(request, caller)

    def check(proposal: Approval) -> None:
        if (objection := hiding(caller, person, proposal)) is not None:
            raise NotAllowed(f"proposal {approval_id} is not yours to see: {objection}")

    return people.show_approval(
        service_of(request).tenant(caller.tenant_id),
        caller.tenant_id,
        _checked(approval_id),
        caller.user_id,
        check,
    )


@router.post(
    "/{approval_id}/decision",
    responses=answers(200, models.DecidedModel, "What the decision led to"),
)
def decide_approval(approval_id: str, body: models.DecideApproval, order: CurrentOrder) -> Response:
    """Approve the call as it is shown, or with other arguments, or reject it: by yourself, once."""
    choice: Approve | Edit | Reject
    match body.decision:
        case "approve":
            choice = Approve()
        case "edit":
            choice = Edit(body.arguments or {})
        case "reject":
            choice = Reject()
    caller = order.caller
    decision = Decision(choice, caller.user_id, body.arguments_hash, body.reason, body.answers)

    def check(_: Connection) -> None:
        require(caller, order.action, is_own=False)

    return order.carry_out(
        Decide(caller.tenant_id, _checked(approval_id), decision),
        lambda decided: Reply(200, decided),
        check,
    )


def person_of(request: Request, caller: Caller) -> Principal:
    """The caller as far as decisions go."""
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        return principals.read(connection, caller.tenant_id, caller.user_id)


def hiding(caller: Caller, person: Principal, proposal: Approval) -> str | None:
    """Why the proposal is not for the caller's eyes, or None."""
    if proposal.requested_by == caller.user_id or sees_all(caller, "show_approval"):
        return None
    return person.objection(
        Requirement.from_json(proposal.requirement),
        proposal.tool,
        proposal.arguments,
        proposal.requested_by,
    )


def _checked(approval_id: str) -> ApprovalId:
    if not is_id(approval_id):
        raise UnknownApproval(f"there is no proposal {approval_id}")
    return ApprovalId(approval_id)
