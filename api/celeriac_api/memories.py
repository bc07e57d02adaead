"""`/v1/memories`: what is remembered of users, where it comes from, and having it forgotten.

A request sees the memories of one user, or an operator's those of the tenant: by row-level security
besides the statements.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from celeriac.client.remembering import Forget, Remember, export, find_by_meaning
from celeriac.errors import InvalidInput
from celeriac.ids import RunId, UserId
from celeriac.memory.candidate import MemoryKind, checked_key, is_key
from celeriac.reports import Memory, MemoryDecision
from celeriac.schemas import strict_json
from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import require, sees_all, user_to_see
from celeriac_api.caller import Caller, service_of
from celeriac_api.idempotency import CurrentOrder, Reply
from celeriac_api.models import memories as models
from celeriac_api.models.responses import answers
from celeriac_api.pages import Cursor, Limit, cursor_after, cut, place_of
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage import memories, ranking
from celeriac_storage.memories import unknown_memory
from celeriac_storage.tenancy import EVERY_OWNER, TenantDatabase

router = APIRouter(prefix="/v1/memories", tags=["memories"], route_class=JsonRoute)

UserFilter = Annotated[
    str | None,
    Query(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$", description="Whose; else yours."),
]
NamespaceFilter = Annotated[str | None, Query(max_length=128, pattern=r"^[^\x00]*$")]


@router.get(
    "",
    responses=answers(200, models.MemoryPage, "What was decided last, or fits best, comes first"),
)
def list_memories(
    request: Request,
    caller: CurrentCaller,
    user_id: UserFilter = None,
    namespace: NamespaceFilter = None,
    kind: MemoryKind | None = None,
    query: Annotated[
        str, Query(max_length=1000, pattern=r"^[^\x00]*$", description="What to look for.")
    ] = "",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List what is remembered of you, with source and decision; an operator lists that of all users
    of the tenant, or of one. A query without any word, such as `%`, finds nothing.

    A query of one user's goes by words and meaning together where the service has an embedder: the
    best come first, on one page. Otherwise, over all users, and while many such searches go on,
    what has one of its words is listed. `found_by` says which it was: the name of the embedder
    stands there beside `words`, and nothing if there is no query."""
    owner = user_to_see(caller, "list_memories", user_id)
    places = service_of(request).searches_by_meaning
    if owner is not None and cursor is None and query.strip() and places.acquire(blocking=False):
        # In a thread, as all of this: an embedder may load a model, or ask a server.
        try:
            found = find_by_meaning(
                _seeing(request, caller, owner),
                caller.tenant_id,
                owner,
                query,
                embedder=service_of(request).settings.embedder,
                namespace=namespace,
                kind=kind,
                limit=limit,
            )
        finally:
            places.release()
        if found is not None:
            return json_response(
                {"memories": found.memories, "next_cursor": None, "found_by": found.found_by}
            )
    shown, next_cursor = page_of_memories(
        request,
        caller,
        user_id,
        namespace=namespace,
        kind=kind,
        query=query,
        limit=limit,
        cursor=cursor,
    )
    return json_response(
        {
            "memories": list(shown),
            "next_cursor": next_cursor,
            "found_by": ranking.ways_of_listing(query),
        }
    )


def page_of_memories(
    request: Request,
    caller: Caller,
    user_id: str | None,
    *,
    namespace: str | None = None,
    kind: MemoryKind | None = None,
    query: str = "",
    limit: int,
    cursor: str | None,
) -> tuple[Sequence[Memory], str | None]:
    """The memories that the caller may see, and the cursor of the next page."""
    owner = user_to_see(caller, "list_memories", user_id)
    with _seeing(request, caller, owner).begin() as connection:
        found = memories.list_memories(
            connection,
            caller.tenant_id,
            owner,
            namespace=namespace,
            kind=kind,
            query=query,
            before=_before(cursor),
            limit=limit + 1,
        )
    shown, has_more = cut(found, limit)
    last = shown[-1] if has_more else None
    return shown, None if last is None else cursor_after(last.changed_at, str(last.decision_id))


@router.get(
    "/decisions", responses=answers(200, models.MemoryDecisionPage, "The latest come first")
)
def list_memory_decisions(
    request: Request,
    caller: CurrentCaller,
    user_id: UserFilter = None,
    run_id: UserFilter = None,
    store: bool | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List what was decided about candidates: all, or (`store`) those that were kept, or were not.
    Of what was refused there is a reason and a hash."""
    shown, next_cursor = page_of_decisions(
        request, caller, user_id, store=store, run_id=run_id, limit=limit, cursor=cursor
    )
    return json_response({"decisions": list(shown), "next_cursor": next_cursor})


def page_of_decisions(
    request: Request,
    caller: Caller,
    user_id: str | None,
    *,
    store: bool | None,
    run_id: str | None = None,
    limit: int,
    cursor: str | None,
) -> tuple[Sequence[MemoryDecision], str | None]:
    """The decisions that the caller may see, and the cursor of the next page."""
    owner = user_to_see(caller, "list_memory_decisions", user_id)
    with _seeing(request, caller, owner).begin() as connection:
        found = memories.list_decisions(
            connection,
            caller.tenant_id,
            owner,
            store=store,
            run_id=None if run_id is None else RunId(run_id),
            before=_before(cursor),
            limit=limit + 1,
        )
    shown, has_more = cut(found, limit)
    last = shown[-1] if has_more else None
    return shown, None if last is None else cursor_after(last.decided_at, str(last.decision_id))


@router.get("/export", responses=answers(200, models.MemoryExportModel, "As of one moment"))
def export_memories(
    request: Request, caller: CurrentCaller, user_id: UserFilter = None
) -> Response:
    """All that is remembered of one user, with what was decided about it."""
    owner = UserId(user_id or caller.user_id)
    require(caller, "export_memories", is_own=owner == caller.user_id)
    with _seeing(request, caller, owner).begin() as connection:
        return json_response(export(connection, caller.tenant_id, owner))


@router.get("/{namespace}/{memory_key}", responses=answers(200, models.MemoryModel, "The memory"))
def show_memory(
    request: Request,
    namespace: str,
    memory_key: str,
    caller: CurrentCaller,
    user_id: UserFilter = None,
) -> Response:
    """What is remembered under a key, with source and decision."""
    return json_response(seen_memory(request, caller, user_id, namespace, memory_key))


def seen_memory(
    request: Request, caller: Caller, user_id: str | None, namespace: str, memory_key: str
) -> Memory:
    """The memory. Raises `UnknownMemory`, also where the caller may not see it."""
    owner = _owner(caller, "show_memory", user_id, namespace, memory_key)
    with _seeing(request, caller, owner).begin() as connection:
        return memories.read(connection, caller.tenant_id, owner, namespace, memory_key)


def decisions_about(
    request: Request, caller: Caller, memory: Memory, limit: int
) -> list[MemoryDecision]:
    """What was last decided about the key of a memory that the caller sees."""
    with _seeing(request, caller, memory.user_id).begin() as connection:
        return memories.list_decisions(
            connection,
            caller.tenant_id,
            memory.user_id,
            place=(memory.namespace, memory.key),
            limit=limit,
        )


@router.put(
    "/{namespace}/{memory_key}",
    responses=answers(200, models.RememberedModel, "What the policy decided"),
)
def remember(
    namespace: str, memory_key: str, body: models.PutMemory, order: CurrentOrder
) -> Response:
    """Have something remembered, if the default policy allows it: `store` says whether. What is
    there already is replaced only if its version is named."""
    caller = order.caller
    owner = UserId(body.user_id or caller.user_id)

    def check(_: Connection) -> None:
        require(caller, order.action, is_own=owner == caller.user_id)

    remembering = Remember(
        caller.tenant_id,
        owner,
        checked_key(namespace, "namespace"),
        checked_key(memory_key),
        strict_json(body.value),
        body.kind,
        caller.user_id,
        body.replaces_version,
        body.expires_days,
    )
    return order.carry_out(remembering, lambda done: Reply(200, done), check, [owner])


@router.delete(
    "/{namespace}/{memory_key}",
    responses=answers(200, models.Forgotten, "Nothing is there any more"),
)
def forget(
    namespace: str, memory_key: str, order: CurrentOrder, user_id: UserFilter = None
) -> Response:
    """Have something forgotten: no later model call is shown it."""
    caller = order.caller
    owner = _owner(caller, order.action, user_id, namespace, memory_key)
    return order.carry_out(
        Forget(caller.tenant_id, owner, namespace, memory_key, caller.user_id),
        lambda _: Reply(200, {"forgotten": True}),
        lambda _: None,
        [owner],
    )


def _owner(
    caller: Caller, action: str, asked: str | None, namespace: str, memory_key: str
) -> UserId:
    """Whose memory it is about. Raises `UnknownMemory` where the caller may not see it, and for
    what can be none."""
    owner = UserId(asked or caller.user_id)
    is_hidden = owner != caller.user_id and not sees_all(caller, action)
    if is_hidden or not (is_key(namespace) and is_key(memory_key)):
        raise unknown_memory(owner, namespace, memory_key)
    return owner


def _seeing(request: Request, caller: Caller, owner: UserId | None) -> TenantDatabase:
    owners = EVERY_OWNER if owner is None else [owner]
    return service_of(request).tenant(caller.tenant_id, owners)


def _before(cursor: str | None) -> int | None:
    place = place_of(cursor)
    if place is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", place[1]):
        raise InvalidInput("this is the cursor of another list: take `next_cursor` of this one")
    return int(place[1])
