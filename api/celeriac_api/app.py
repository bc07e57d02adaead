"""The application: what it is made of, in the order in which a request meets it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import anyio.to_thread
from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware

from celeriac.settings import Settings
from celeriac_api import (
    access,
    approvals,
    budgets,
    calls,
    console,
    health,
    memories,
    metrics,
    problems,
    runs,
    schedules,
    threads,
    timers,
    users,
)
from celeriac_api.authentication import authenticated
from celeriac_api.headers import SafeHeaders
from celeriac_api.limits import BodyLimit
from celeriac_api.models.responses import ProblemModel
from celeriac_api.service import Service
from celeriac_api.streaming import routes as streaming
from celeriac_api.streaming.hub import Hub

ROUTERS = (
    runs.router,
    calls.router,
    streaming.router,
    approvals.router,
    schedules.router,
    timers.router,
    threads.router,
    memories.router,
    access.router,
    users.router,
    budgets.router,
)
"""Whatever is here is for callers with a good token only."""

_DESCRIPTION = """Start agent runs, follow them, and decide what they may do.

Every request but `/healthz`, `/readyz`, `/metrics` and this document needs
`Authorization: Bearer TOKEN`. What has an effect takes an `Idempotency-Key`. Errors are problem
details (RFC 9457)."""


def create_app(settings: Settings) -> FastAPI:
    """The API on the settings' servers. Connects at the first request; raises `InvalidInput` for
    settings that cannot be used."""
    service = Service(settings)
    app = FastAPI(
        title="Celeriac",
        version=version("celeriac"),
        description=_DESCRIPTION,
        docs_url=None,  # its page would fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
        lifespan=_lifespan,
    )
    app.state.service = service
    app.state.figures = metrics.Figures(service.begin)
    problems.install(app)
    for router in ROUTERS:
        app.include_router(router, dependencies=[Depends(authenticated)])
    app.include_router(health.router)
    app.include_router(metrics.router)
    console.install(app)
    app.add_middleware(BodyLimit, most_bytes=settings.api_max_body_bytes)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
            expose_headers=["Location", "Retry-After", "Idempotent-Replayed"],
        )
    app.add_middleware(SafeHeaders)
    app.add_middleware(metrics.Timed)
    _document_problems(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    # As many at once as there are connections: more would hold a thread to wait for one.
    anyio.to_thread.current_default_thread_limiter().total_tokens = service.settings.connections
    broker_url = service.settings.broker_url
    url = broker_url.get_secret_value() if broker_url else None
    hub = Hub(service.tenant, service.lookout, url)
    async with hub.running():
        app.state.hub = app.state.figures.streams.hub = hub
        yield
    service.close()


def _document_problems(app: FastAPI) -> None:
    """Give the OpenAPI document the schema that all errors share, in place of FastAPI's own."""
    made = app.openapi

    def openapi() -> dict[str, object]:
        if app.openapi_schema is None:
            document = made()
            schemas = document["components"]["schemas"]
            schemas.pop("HTTPValidationError", None)
            schemas.pop("ValidationError", None)
            schemas["Problem"] = ProblemModel.model_json_schema(
                ref_template="#/components/schemas/{model}"
            )
            schemas.update(schemas["Problem"].pop("$defs", {}))
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it
