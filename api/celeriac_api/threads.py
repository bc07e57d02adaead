"""`/v1/threads`: conversations."""

from fastapi import APIRouter, Request, Response

from celeriac.ids import ThreadId, is_id
from celeriac_api import models
from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import sees_all
from celeriac_api.caller import service_of
from celeriac_api.models import answers
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage.reading import read_thread, unknown_thread

router = APIRouter(prefix="/v1/threads", tags=["threads"], route_class=JsonRoute)


@router.get("/{thread_id}", responses=answers(200, models.ThreadModel, "The thread"))
def show_thread(request: Request, thread_id: str, caller: CurrentCaller) -> Response:
    """A thread and its latest runs; `GET /v1/runs?thread_id=` has the others."""
    if not is_id(thread_id):
        raise unknown_thread(ThreadId(thread_id))
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        thread = read_thread(connection, caller.tenant_id, ThreadId(thread_id))
    if thread.user_id != caller.user_id and not sees_all(caller, "show_thread"):
        raise unknown_thread(ThreadId(thread_id))
    return json_response(thread)
