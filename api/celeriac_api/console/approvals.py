"""The inbox of proposals, and one proposal with all that there is to know before it is decided."""

import json
from typing import Annotated, Any, cast

from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException

from celeriac.approval import Requirement
from celeriac.client import people
from celeriac.errors import CeleriacError, RateLimited, Unavailable, UnknownApproval
from celeriac.ids import ApprovalId
from celeriac.reports import Approval
from celeriac_api import approvals as api
from celeriac_api import problems
from celeriac_api.caller import Caller, service_of
from celeriac_api.console import fields
from celeriac_api.console.forms import Form, PostedForm, body_of
from celeriac_api.console.pages import PageRoute, render, see
from celeriac_api.console.sessions import CurrentUser
from celeriac_api.models.approvals import DecideApproval
from celeriac_api.pages import Cursor, cursor_after, cut, place_of
from celeriac_storage import approvals

router = APIRouter(prefix="/approvals", route_class=PageRoute)

PROPOSALS_SHOWN = 50
STATUSES = (
    "pending",
    "approved",
    "rejected",
    "expired",
    "cancelled",
    "superseded",
    "revoked",
    "any",
)


@router.get("", name="list_approvals")
def inbox(
    request: Request,
    caller: CurrentUser,
    status: Annotated[str, Query(max_length=20)] = "pending",
    cursor: Cursor = None,
) -> Response:
    """What there is to decide. Nobody is shown a proposal by this: only its page has all of it."""
    if status not in STATUSES:
        raise HTTPException(400, f"{status} is no status of a proposal")
    place = place_of(cursor or None)
    person = api.person_of(request, caller)
    found = people.list_approvals(
        service_of(request).tenant(caller.tenant_id),
        caller.tenant_id,
        status=None if status == "any" else status,
        after=None if place is None else (place[0], ApprovalId(place[1])),
        limit=PROPOSALS_SHOWN + 1,
        is_listed=lambda proposal: api.hiding(caller, person, proposal) is None,
    )
    listed, has_more = cut(found, PROPOSALS_SHOWN)
    return render(
        request,
        "approvals.html",
        proposals=[(each, _objection(person, each)) for each in listed],
        status=status,
        statuses=STATUSES,
        next_cursor=cursor_after(listed[-1].created_at, listed[-1].approval_id)
        if has_more
        else None,
    )


@router.get("/{approval_id}", name="show_approval")
def proposal_page(request: Request, approval_id: str, caller: CurrentUser) -> Response:
    """The whole proposal. That the caller is shown it, and when, and what, is recorded."""
    proposal = api.shown_approval(request, caller, approval_id)
    return _page(request, caller, proposal)


@router.post("/{approval_id}/decision", name="decide_approval")
def decide(request: Request, approval_id: str, form: PostedForm) -> Response:
    """What the API does with a decision; if it refuses, the page again, with what was typed."""
    try:
        body = _decision(request, approval_id, form)
        decided = json.loads(bytes(api.decide_approval(approval_id, body, form.order(body)).body))
    except (RateLimited, Unavailable, UnknownApproval):
        raise  # there is no page to show again, or not just now
    except CeleriacError as error:
        kind, detail = problems.settle(request, error)
        proposal = api.shown_approval(request, form.caller, approval_id)
        return _page(request, form.caller, proposal, kind=kind, problem=detail, form=form)
    return see(f"/approvals/{decided['approval_id']}")


def _decision(request: Request, approval_id: str, form: Form) -> DecideApproval:
    given: dict[str, Any] = {
        "decision": form.text("decision"),
        "arguments_hash": form.text("arguments_hash"),
        "reason": form.text("reason"),
    }
    if given["decision"] != "reject":
        given["answers"] = _answers(form)
    if given["decision"] == "edit":
        # An id names one version, whose arguments never change.
        with service_of(request).tenant(form.caller.tenant_id).begin() as connection:
            proposed = approvals.read(
                connection, form.caller.tenant_id, ApprovalId(approval_id)
            ).arguments
        given["arguments"] = fields.edited(proposed, form)
    return body_of(DecideApproval, **given)


def _answers(form: Form) -> dict[str, str]:
    """By question, those that were answered."""
    return {
        question: answer
        for name, question in form.fields.items()
        if name.startswith("question.")
        and (answer := form.text(name.replace("question.", "answer.", 1)).strip())
    }


def _page(
    request: Request,
    caller: Caller,
    proposal: Approval,
    *,
    kind: problems.Kind | None = None,
    problem: str | None = None,
    form: Form | None = None,
) -> Response:
    tenant_id = caller.tenant_id
    with service_of(request).tenant(tenant_id).begin() as connection:
        rulings = approvals.rulings_about(connection, proposal.approval_id)
        sights = approvals.sights_of(connection, proposal.approval_id)
        before = (
            approvals.read(connection, tenant_id, proposal.edited_from)
            if proposal.edited_from is not None
            else None
        )
        after = approvals.edited_version(connection, proposal.approval_id)
    immutable = proposal.requirement.get("immutable")
    typed = {} if form is None else form.texts()
    return render(
        request,
        "approval.html",
        kind.status if kind is not None else 200,
        proposal=proposal,
        rendering=approvals.rendering_hash(proposal),
        requirement=proposal.requirement,
        questions=cast("list[str]", proposal.requirement.get("checklist") or []),
        fields=fields.fields_of(proposal.arguments, immutable, typed),
        changes=None if before is None else fields.changes(before.arguments, proposal.arguments),
        before=before,
        after=after,
        rulings=rulings,
        sights=sights,
        objection=_objection(api.person_of(request, caller), proposal),
        has_decided=any(each.reviewer == caller.user_id for each in rulings),
        problem=problem,
        problem_title=kind.title if kind is not None else None,
        typed=typed,
    )


def _objection(person: Any, proposal: Approval) -> str | None:
    """Why this person may not decide it."""
    objection: str | None = person.objection(
        Requirement.from_json(proposal.requirement),
        proposal.tool,
        proposal.arguments,
        proposal.requested_by,
    )
    return objection
