"""What is remembered of users: where it comes from, why it was kept, and having it forgotten."""

from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException

from celeriac.memory.candidate import MemoryKind, Origin
from celeriac.memory.policy import Reason
from celeriac.reports import Memory, MemoryDecision
from celeriac_api import memories as api
from celeriac_api.authorization import sees_all
from celeriac_api.console.forms import PostedForm
from celeriac_api.console.pages import PageRoute, render, see
from celeriac_api.console.sessions import CurrentUser
from celeriac_api.memories import UserFilter
from celeriac_api.pages import Cursor

router = APIRouter(prefix="/memories", route_class=PageRoute)

MEMORIES_SHOWN = 50
DECISIONS_SHOWN = 50

REASONS: Mapping[str, str] = {
    Reason.EXPLICIT_REQUEST: "the user asked for it",
    Reason.APPROVED: "people have approved it",
    Reason.INVALID_OWNER: "it named no good owner",
    Reason.INVALID_KEY: "its key cannot be one",
    Reason.INVALID_NAMESPACE: "its namespace cannot be one, or is not the agent's",
    Reason.INVALID_VALUE: "its content cannot be kept",
    Reason.INVALID_KIND: "its kind is unknown",
    Reason.INVALID_FLAG: "its flags contradict each other",
    Reason.INVALID_EXPIRY: "its expiry cannot be one",
    Reason.TOO_LARGE: "it is too large",
    Reason.SENSITIVE: "it is sensitive",
    Reason.INCIDENTAL: "nobody asked to have it remembered",
    Reason.SOURCE: "its words are not the user's",
    Reason.PROCEDURAL: "it would change how the agent works, and nobody has approved that",
    Reason.DISGUISED: "it calls itself a fact and tells the agent what to do",
    Reason.POLICY: "the application's own rule refuses it",
    Reason.CONFLICT: "something is remembered there, and it did not name that version",
    Reason.FULL: "as much is remembered of this user as may be",
}
"""Why a candidate was kept or not, for people. A test compares them with the policy's."""

ORIGINS: Mapping[str, str] = {
    Origin.USER: "the user's own words",
    Origin.TOOL: "a tool's result",
    Origin.MODEL: "the model alone",
    Origin.PERSON: "a person, directly",
}

Text = Annotated[str, Query(max_length=1000, pattern=r"^[^\x00]*$")]
Whose = Annotated[str, Query(max_length=128, pattern=r"^([A-Za-z0-9][A-Za-z0-9._@-]*)?$")]


@router.get("", name="list_memories")
def memories_page(
    request: Request,
    caller: CurrentUser,
    search: Text = "",
    kind: Text = "",
    user_id: Whose = "",
    cursor: Cursor = None,
) -> Response:
    """Of the caller, or for an operator of everybody; an empty filter, as a form sends it, is
    none."""
    if kind and kind not in {*MemoryKind}:
        raise HTTPException(400, f"{kind} is no kind of a memory")
    found, next_cursor = api.page_of_memories(
        request,
        caller,
        user_id or None,
        kind=MemoryKind(kind) if kind else None,
        query=search,
        limit=MEMORIES_SHOWN,
        cursor=cursor or None,
    )
    return render(
        request,
        "memories.html",
        memories=[(each, address_of(each)) for each in found],
        reasons=REASONS,
        kinds=list(MemoryKind),
        kind=kind,
        search=search,
        user_id=user_id,
        sees_all=sees_all(caller, "list_memories"),
        is_first=not cursor,
        next_cursor=next_cursor,
    )


@router.get("/decisions", name="list_memory_decisions")
def decisions_page(
    request: Request,
    caller: CurrentUser,
    only: Literal["refused", "kept", ""] = "",
    user_id: Whose = "",
    cursor: Cursor = None,
) -> Response:
    """What became of each candidate. Of what was refused there is no content, only a reason."""
    found, next_cursor = api.page_of_decisions(
        request,
        caller,
        user_id or None,
        store=None if not only else only == "kept",
        limit=DECISIONS_SHOWN,
        cursor=cursor or None,
    )
    return render(
        request,
        "memory_decisions.html",
        decisions=found,
        reasons=REASONS,
        origins=ORIGINS,
        only=only,
        user_id=user_id,
        sees_all=sees_all(caller, "list_memory_decisions"),
        next_cursor=next_cursor,
    )


@router.get("/{namespace}/{memory_key}", name="show_memory")
def memory_page(
    request: Request,
    namespace: str,
    memory_key: str,
    caller: CurrentUser,
    user_id: UserFilter = None,
) -> Response:
    memory = api.seen_memory(request, caller, user_id, namespace, memory_key)
    decisions = api.decisions_about(request, caller, memory, DECISIONS_SHOWN)
    return render(
        request,
        "memory.html",
        memory=memory,
        address=address_of(memory),
        forget_at=_at(memory, "/forget"),
        decisions=decisions,
        basis=_basis(memory, decisions),
        reasons=REASONS,
        origins=ORIGINS,
    )


@router.post("/{namespace}/{memory_key}/forget", name="forget")
def forget(
    namespace: str, memory_key: str, form: PostedForm, user_id: UserFilter = None
) -> Response:
    """Whose it is stands in the address, so that it belongs to what the form's key is about."""
    api.forget(namespace, memory_key, form.order(), user_id)
    return see("/memories" if user_id is None else "/memories?" + urlencode({"user_id": user_id}))


def address_of(memory: Memory) -> str:
    return _at(memory)


def _at(memory: Memory, what: str = "") -> str:
    place = "/".join(quote(each, safe="") for each in (memory.namespace, memory.key))
    return f"/memories/{place}{what}?{urlencode({'user_id': memory.user_id})}"


def _basis(memory: Memory, decisions: list[MemoryDecision]) -> MemoryDecision | None:
    """The decision that the memory rests on, if it is among these."""
    return next((each for each in decisions if each.decision_id == memory.decision_id), None)
