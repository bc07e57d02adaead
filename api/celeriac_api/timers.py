"""`/v1/timers`: the times that runs wait for."""

from fastapi import APIRouter, Request, Response

from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import user_to_see
from celeriac_api.caller import service_of
from celeriac_api.models import timers as models
from celeriac_api.models.responses import answers
from celeriac_api.pages import Limit
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage import timers

router = APIRouter(prefix="/v1/timers", tags=["schedules"], route_class=JsonRoute)


@router.get("", responses=answers(200, models.Timers, "The next one first"))
def list_timers(request: Request, caller: CurrentCaller, limit: Limit = 100) -> Response:
    """List the times that your own runs wait for, or all of the tenant for an operator."""
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        found = timers.list_waiting(
            connection, caller.tenant_id, user_to_see(caller, "list_timers", None), limit
        )
    return json_response({"timers": found})
