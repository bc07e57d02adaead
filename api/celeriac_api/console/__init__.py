"""The console: what people see of runs and decide about them, in a browser (docs/console.md).

Pages are made here and need no script to be read or used; htmx keeps them fresh. Whatever somebody
does goes through the API's own endpoints, as the caller that the session names: same rights, same
limits, same audit trail, same idempotency keys.
"""

from fastapi import Depends, FastAPI

from celeriac_api.console import (
    approvals,
    budgets,
    memories,
    runs,
    schedules,
    signing,
    threads,
    unsettled,
    workers,
)
from celeriac_api.console.sessions import signed_in
from celeriac_api.console.static import STATIC_PATH, Static

ROUTERS = (
    runs.router,
    threads.router,
    approvals.router,
    unsettled.router,
    schedules.router,
    memories.router,
    budgets.router,
    workers.router,
)
"""Whatever is here is for who is signed in. A new page is a module with a router here, a template
that extends `base.html`, and a line in its navigation."""


def install(app: FastAPI) -> None:
    """Serve the console at `/`, beside the API."""
    app.include_router(signing.router, include_in_schema=False)
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(signed_in)], include_in_schema=False)
    app.mount(STATIC_PATH, Static(), name="static")
