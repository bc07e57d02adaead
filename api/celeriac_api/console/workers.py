"""Workers and queues as they are now."""

from fastapi import APIRouter, Request, Response

from celeriac_api.authorization import require
from celeriac_api.caller import service_of
from celeriac_api.console.pages import PageRoute, render
from celeriac_api.console.sessions import CurrentUser
from celeriac_storage import overview, workers

router = APIRouter(prefix="/workers", route_class=PageRoute)

DEPARTED_SHOWN = 20


@router.get("", name="list_workers")
def workers_page(request: Request, caller: CurrentUser) -> Response:
    require(caller, "list_workers", is_own=False)
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        shown = workers.list_workers(connection, caller.tenant_id)
        queues = overview.read_queues(connection, caller.tenant_id)
        deaths = overview.read_deaths(connection)
    return render(
        request,
        "workers.html",
        alive=[each for each in shown if each.alive],
        departed=[each for each in shown if not each.alive][:DEPARTED_SHOWN],
        queues=queues,
        deaths={each.worker_id: each for each in deaths},
        flower_url=service_of(request).settings.flower_url,
    )
