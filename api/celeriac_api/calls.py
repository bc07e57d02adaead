"""`/v1/calls`: the calls of all runs that another process is to execute."""

from fastapi import APIRouter, Request, Response

from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import user_to_see
from celeriac_api.caller import service_of
from celeriac_api.models import calls as models
from celeriac_api.models.responses import answers
from celeriac_api.pages import Limit
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage import submitting

router = APIRouter(prefix="/v1/calls", tags=["calls"], route_class=JsonRoute)


@router.get("", responses=answers(200, models.Calls, "The calls, the oldest first"))
def list_requested_calls(request: Request, caller: CurrentCaller, limit: Limit = 100) -> Response:
    """List the calls that wait for a result: of your own runs, or of all of the tenant for an
    operator. Each stays in the list until its result is there."""
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        found = submitting.requested_calls(
            connection,
            limit=limit,
            tenant_id=caller.tenant_id,
            user_id=user_to_see(caller, "list_runs", None),
        )
    return json_response({"calls": found})
