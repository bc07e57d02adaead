"""`/healthz`: the process answers. `/readyz`: and so do the servers that it needs."""

import redis
from fastapi import APIRouter, Request, Response
from kombu import Connection as BrokerConnection
from kombu.exceptions import OperationalError

from celeriac.errors import CeleriacError, SchemaMismatch
from celeriac_api.caller import service_of
from celeriac_api.models import health as models
from celeriac_api.requests import json_response
from celeriac_api.service import Service

router = APIRouter(tags=["health"])

BROKER_TIMEOUT_SECONDS = 2


@router.get("/healthz", responses={200: {"model": models.Health}})
async def healthz() -> Response:
    """Whether the process lives. It asks no server: restarting it would not bring one back."""
    return json_response({"status": "ok"})


@router.get(
    "/readyz",
    responses={
        200: {"model": models.Readiness, "description": "Requests can be served"},
        503: {"model": models.Readiness, "description": "And why not"},
    },
)
def readyz(request: Request) -> Response:
    """Whether requests can be served: by the database with the right schema, and by the broker.

    Without the broker they are served as well, only slower: a scheduler publishes what they start.
    So its absence is told, and is no failure.
    """
    service = service_of(request)
    database = _database(service)
    is_ready = database == "ok"
    return json_response(
        {
            "status": "ready" if is_ready else "not ready",
            "database": database,
            "broker": _broker(service),
        },
        200 if is_ready else 503,
        {} if is_ready else {"Retry-After": "1"},
    )


def _database(service: Service) -> str:
    # Anybody may ask this: so no address is told.
    try:
        with service.ready().connect() as connection:
            connection.exec_driver_sql("SELECT 1 FROM celeriac.tenants LIMIT 1")
    except SchemaMismatch:
        return "has not the schema that this version needs: run `celeriac migrate`"
    except CeleriacError:
        return "does not answer"
    return "ok"


def _broker(service: Service) -> str:
    url = service.settings.broker_url
    if url is None:
        return "none"
    try:
        with BrokerConnection(
            url.get_secret_value(), connect_timeout=BROKER_TIMEOUT_SECONDS
        ) as connection:
            connection.ensure_connection(max_retries=1, timeout=BROKER_TIMEOUT_SECONDS)
            connection.default_channel  # noqa: B018 - the property opens it
    except (redis.RedisError, OperationalError, OSError):
        return "does not answer"
    return "ok"
