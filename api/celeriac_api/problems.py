"""Errors as RFC 9457 problem details: one table says what each is over HTTP.

{"type": "urn:celeriac:problem:unknown-run", "title": "There is no such run", "status": 404,
 "detail": "there is no run r01; …", "instance": "/v1/runs/r01"}

`type` is what programs go by: it never changes. A validation problem also has `errors`, a list of
`{pointer, detail}`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException

from celeriac import errors
from celeriac.codec import JsonValue
from celeriac.errors import CeleriacError, DatabaseUnavailable
from celeriac.reasons import reason
from celeriac_api import denials
from celeriac_api.headers import SAFE_HEADERS
from celeriac_storage.database import sqlstate

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
URN = "urn:celeriac:problem:"
_OUT_OF_TIME = frozenset({"55P03", "57014"})  # a lock or a statement took too long
_RETRY_SECONDS = "1"


@dataclass(frozen=True, slots=True)
class Kind:
    """What an error is over HTTP."""

    status: int
    name: str  # the end of its `type`
    title: str
    detail: str | None = None  # instead of the error's own message, which is not for everybody
    headers: Mapping[str, str] | None = None


_LATER = {"Retry-After": _RETRY_SECONDS}
_AWAY = "The service cannot do this just now; ask again in a moment. Nothing is lost by that."

KINDS: Mapping[type[CeleriacError], Kind] = {
    errors.InvalidInput: Kind(422, "invalid-input", "This cannot be used"),
    errors.InvalidArguments: Kind(422, "invalid-arguments", "The tool cannot take these arguments"),
    errors.InvalidDecision: Kind(422, "invalid-decision", "The decision lacks something"),
    errors.UnknownAgent: Kind(422, "unknown-agent", "There is no such agent"),
    errors.InvalidReceipt: Kind(422, "invalid-receipt", "The receipt cannot be used"),
    errors.KeyReused: Kind(422, "key-reused", "The idempotency key is another request's"),
    errors.UnknownRun: Kind(404, "unknown-run", "There is no such run"),
    errors.UnknownCall: Kind(404, "unknown-call", "The run has no such call"),
    errors.UnknownApproval: Kind(404, "unknown-approval", "There is no such proposal"),
    errors.UnknownThread: Kind(404, "unknown-thread", "There is no such thread"),
    errors.UnknownSchedule: Kind(404, "unknown-schedule", "There is no such schedule"),
    errors.UnknownMemory: Kind(404, "unknown-memory", "Nothing is remembered there"),
    errors.UnknownToken: Kind(404, "unknown-token", "There is no such token"),
    errors.UnknownBudget: Kind(404, "unknown-budget", "There is no such budget"),
    errors.Conflict: Kind(409, "conflict", "The state of the run does not allow this"),
    errors.RunExists: Kind(409, "run-exists", "A run of this id exists already"),
    errors.ThreadBusy: Kind(409, "thread-busy", "The thread has an active run"),
    errors.WrongOwner: Kind(409, "wrong-owner", "The thread is not this user's"),
    errors.DecisionRefused: Kind(409, "decision-refused", "The proposal cannot be decided (so)"),
    errors.KeyInUse: Kind(
        409, "key-in-use", "The first request with this key is still at work", headers=_LATER
    ),
    errors.KeyPruned: Kind(410, "key-pruned", "This was done, and its answer is not kept any more"),
    errors.NotAllowed: Kind(403, "not-allowed", "This person may not decide this"),
    errors.RoleMissing: Kind(403, "role-missing", "This takes another role"),
    errors.Unauthenticated: Kind(
        401,
        "unauthenticated",
        "A good bearer token is needed",
        headers={"WWW-Authenticate": 'Bearer realm="celeriac"'},
    ),
    errors.RateLimited: Kind(429, "rate-limited", "Too many requests", headers=_LATER),
    errors.Unavailable: Kind(503, "unavailable", "A server is away", _AWAY, _LATER),
    errors.NotSetUp: Kind(501, "not-set-up", "This service is not set up for that"),
    errors.SchemaMismatch: Kind(503, "schema-mismatch", "The service is not ready", _AWAY, _LATER),
    errors.CeleriacError: Kind(
        500, "unexpected", "Something went wrong here", "It is in the service's log."
    ),
}
"""By the error's class, or the nearest one above it."""

UNEXPECTED = KINDS[errors.CeleriacError]
INVALID_REQUEST = Kind(422, "invalid-request", "The request is not as the API's schema says")
NOT_FOUND = Kind(404, "not-found", "There is nothing at this address")
_BY_STATUS: Mapping[int, Kind] = {
    400: Kind(400, "malformed-request", "The request cannot be read"),
    404: NOT_FOUND,
    405: Kind(405, "method-not-allowed", "This method is not for this address"),
    413: Kind(413, "too-large", "The request is too large"),
    415: Kind(415, "unsupported-media-type", "The body must be JSON"),
}


def kind_of(error: CeleriacError) -> Kind:
    return next(KINDS[each] for each in type(error).__mro__ if each in KINDS)


def respond(
    request: Request,
    kind: Kind,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **more: JsonValue,
) -> JSONResponse:
    """A problem as a response."""
    body: dict[str, JsonValue] = {
        "type": URN + kind.name,
        "title": kind.title,
        "status": kind.status,
        "detail": kind.detail or detail,
        "instance": request.url.path,
        **more,
    }
    return Problem(body, kind.status, {**SAFE_HEADERS, **(kind.headers or {}), **(headers or {})})


class Problem(JSONResponse):
    media_type = MEDIA_TYPE

    def render(self, content: Any) -> bytes:
        # Whatever a caller sent may stand in a message: a lone surrogate is no UTF-8.
        return super().render(_encodable(content))


def install(app: FastAPI) -> None:
    """Let every error of this application be answered by a problem."""
    app.add_exception_handler(CeleriacError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(DBAPIError, _on_database_error)
    app.add_exception_handler(Exception, _on_unexpected)


def _on_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, CeleriacError)
    kind, detail = settle(request, error)
    return respond(request, kind, detail)


def settle(request: Request, error: CeleriacError) -> tuple[Kind, str]:
    """What is to be told of the error, which is recorded if it is a denial, and how in words."""
    kind = kind_of(error)
    try:
        denials.note(request, error, kind.status)
    except DatabaseUnavailable as away:
        error, kind = away, kind_of(away)  # what cannot be recorded is not answered
    if kind.status >= 500:
        logger.warning("%s %s: %s", request.method, request.url.path, error)
    return kind, kind.detail or str(error)


def _on_invalid_request(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found: list[JsonValue] = [
        {"pointer": _pointer(each["loc"]), "detail": reason(each)} for each in error.errors()
    ]
    first = found[0] if found else {}
    assert isinstance(first, dict)
    detail = f"{first.get('pointer')}: {first.get('detail')}"
    return respond(request, INVALID_REQUEST, detail, errors=found)


def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    kind = kind_of_status(error.status_code)
    return respond(request, kind, error.detail, headers=error.headers)


def kind_of_status(status: int) -> Kind:
    """Of what is wrong before it is known what was asked for."""
    phrase = HTTPStatus(status).phrase
    return _BY_STATUS.get(status) or Kind(status, phrase.lower().replace(" ", "-"), phrase)


def _on_database_error(request: Request, error: Exception) -> JSONResponse:
    away = out_of_time(error)
    if away is None:
        return _on_unexpected(request, error)
    return respond(request, kind_of(away), str(away))


def out_of_time(error: Exception) -> errors.Unavailable | None:
    """What to say if a statement waited too long for a lock."""
    if sqlstate(error) not in _OUT_OF_TIME:
        return None
    return errors.Unavailable("what this needs was locked by others for too long")


def _on_unexpected(request: Request, error: Exception) -> JSONResponse:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return respond(request, UNEXPECTED, "")


def _pointer(place: Sequence[int | str]) -> str:
    """Where in the request: `/body/limits/steps`, as a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(each).replace('~', '~0').replace('/', '~1')}" for each in place)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return value
