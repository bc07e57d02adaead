"""`/metrics`: what the rows say just now, and what this process counts of its requests."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from sqlalchemy import Connection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celeriac.errors import Unauthenticated
from celeriac_api.caller import peer_of, service_of
from celeriac_api.models.responses import PROBLEMS
from celeriac_api.streaming.hub import Hub
from celeriac_tasks.metrics.guard import may_read
from celeriac_tasks.metrics.rows import Rows

REGISTRY = CollectorRegistry(auto_describe=True)
"""What this process counts."""

REQUEST_SECONDS = Histogram(
    "celeriac_http_request_seconds",
    "From a request to the begin of its answer: a stream's is sent at once",
    ["operation", "status"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
REFUSED_TOKENS = Counter(
    "celeriac_refused_tokens",
    "Requests with a token that opens nothing",
    ["why"],
    registry=REGISTRY,
)
for _why in ("no good", "too many"):
    REFUSED_TOKENS.labels(_why)  # from zero on: of a figure that begins with 1, no rate is known
_NO_OPERATION = "none"  # whatever address was asked for: anybody can invent those

router = APIRouter(tags=["health"])


class Streams(Collector):
    """Who follows runs through this process."""

    def __init__(self) -> None:
        self.hub: Hub | None = None

    def collect(self) -> Iterator[GaugeMetricFamily]:
        readers, runs = (0, 0) if self.hub is None else self.hub.sizes
        yield GaugeMetricFamily("celeriac_event_readers", "Readers of event streams", readers)
        yield GaugeMetricFamily("celeriac_event_runs", "Runs that they read", runs)


class Figures:
    """All that the API's `/metrics` shows."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Connection]]) -> None:
        self.streams = Streams()
        self._own = CollectorRegistry(auto_describe=True)
        self._own.register(Rows(begin))
        self._own.register(self.streams)
        ProcessCollector(registry=self._own)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._own) + generate_latest(REGISTRY)


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {
            "description": "In Prometheus's text format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **{status: PROBLEMS[status] for status in (401, 500)},
    },
)
def metrics(request: Request) -> Response:
    """Figures of all tenants together: for whoever has CELERIAC_METRICS_TOKEN, or asks from this
    machine."""
    token = service_of(request).settings.metrics_token
    if not may_read(token, peer_of(request), request.headers):
        raise Unauthenticated(
            "send the header `Authorization: Bearer` with CELERIAC_METRICS_TOKEN, or ask from the "
            "machine itself"
        )
    figures: Figures = request.app.state.figures
    return Response(figures.text(), media_type=CONTENT_TYPE_LATEST)


class Timed:
    """Counts each request with the time that its answer took to begin."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_at = time.perf_counter()

        async def send_timed(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                operation = getattr(route, "name", _NO_OPERATION)
                seconds = time.perf_counter() - began_at
                REQUEST_SECONDS.labels(operation, message["status"]).observe(seconds)
            await send(message)

        await self._app(scope, receive, send_timed)
