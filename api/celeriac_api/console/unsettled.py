"""Calls of which nobody knows what came, for whoever may say it."""

from fastapi import APIRouter, Request, Response

from celeriac_api.authorization import require
from celeriac_api.caller import service_of
from celeriac_api.console.pages import PageRoute, render
from celeriac_api.console.sessions import CurrentUser
from celeriac_storage import timelines

router = APIRouter(prefix="/unsettled", route_class=PageRoute)


@router.get("", name="resolve_call")
def unsettled_page(request: Request, caller: CurrentUser) -> Response:
    require(caller, "resolve_call", is_own=False)
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        calls = timelines.list_unsettled(connection, caller.tenant_id)
    return render(request, "unsettled.html", calls=calls)
