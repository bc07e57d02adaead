"""`/v1/threads`: conversations."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from celeriac.ids import ThreadId, is_id
from celeriac.reports import Thread, ThreadLine
from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import sees_all, user_to_see
from celeriac_api.caller import Caller, service_of
from celeriac_api.models import threads as models
from celeriac_api.models.responses import answers
from celeriac_api.pages import Cursor, Limit, cursor_after, cut, place_of
from celeriac_api.requests import JsonRoute, json_response
from celeriac_api.runs import IdFilter
from celeriac_storage import conversations
from celeriac_storage.conversations import read_thread, unknown_thread

router = APIRouter(prefix="/v1/threads", tags=["threads"], route_class=JsonRoute)


@router.get("", responses=answers(200, models.ThreadPage, "Those that began last come first"))
def list_threads(
    request: Request,
    caller: CurrentCaller,
    user_id: IdFilter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List conversations, each with its latest run: your own, or all of the tenant for an
    operator."""
    threads, next_cursor = page_of_threads(request, caller, user_id, limit, cursor)
    return json_response({"threads": list(threads), "next_cursor": next_cursor})


def page_of_threads(
    request: Request, caller: Caller, user_id: str | None, limit: int, cursor: str | None
) -> tuple[Sequence[ThreadLine], str | None]:
    """The threads that the caller may see, and the cursor of the next page."""
    place = place_of(cursor)
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        found = conversations.list_threads(
            connection,
            caller.tenant_id,
            user_to_see(caller, "list_threads", user_id),
            before=None if place is None else (place[0], ThreadId(place[1])),
            limit=limit + 1,
        )
    threads, has_more = cut(found, limit)
    last = threads[-1] if has_more else None
    return threads, None if last is None else cursor_after(last.created_at, last.thread_id)


@router.get("/{thread_id}", responses=answers(200, models.ThreadModel, "The thread"))
def show_thread(request: Request, thread_id: str, caller: CurrentCaller) -> Response:
    """A thread and its latest runs; `GET /v1/runs?thread_id=` has the others."""
    return json_response(seen_thread(request, caller, thread_id))


def seen_thread(request: Request, caller: Caller, thread_id: str) -> Thread:
    """The thread. Raises `UnknownThread`, also where the caller may not see it."""
    if not is_id(thread_id):
        raise unknown_thread(ThreadId(thread_id))
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        thread = read_thread(connection, caller.tenant_id, ThreadId(thread_id))
    if thread.user_id != caller.user_id and not sees_all(caller, "show_thread"):
        raise unknown_thread(ThreadId(thread_id))
    return thread
