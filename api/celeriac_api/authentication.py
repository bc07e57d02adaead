"""Who asks: the bearer token of a request.

Ours are random, and the database knows their hashes (`celeriac token`). Those of another issuer are
JWTs, if the settings name its keys (`celeriac_api.jwt_tokens`).
"""

import logging
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from celeriac.errors import Unauthenticated
from celeriac_api.caller import Caller, peer_of, service_of
from celeriac_api.service import Service
from celeriac_storage import audit_trail, tokens

logger = logging.getLogger(__name__)

LONGEST_TOKEN_CHARACTERS = 16_384

_bearer = HTTPBearer(
    auto_error=False,
    description="A token that `celeriac token create` printed, or a JWT of the configured issuer.",
)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def authenticated(request: Request, credentials: Credentials) -> Caller:
    """The caller, who may ask now. Raises `Unauthenticated` or `RateLimited`.

    Which of the many reasons there are for the first is not told: only the log knows.
    """
    known = getattr(request.state, "caller", None)
    if isinstance(known, Caller):
        return known  # `authenticate` was first
    if credentials is None:
        raise Unauthenticated("send the header `Authorization: Bearer TOKEN`")
    return admitted(request, owner_of_token(request, credentials.credentials))


async def authenticate(request: Request) -> None:
    """The same before anything of the request's body is read. Raises as `authenticated`."""
    await run_in_threadpool(authenticated, request, await _bearer(request))


CurrentCaller = Annotated[Caller, Depends(authenticated)]


def admitted(request: Request, caller: Caller) -> Caller:
    """The caller, who is known now, unless he asks too often. Raises `RateLimited`."""
    request.state.caller = caller
    service_of(request).rate_limit.take(f"{caller.tenant_id}:{caller.user_id}")
    return caller


def owner_of_token(request: Request, token: str) -> Caller:
    """Whose token it is. Raises `Unauthenticated` for one that opens nothing, and `RateLimited` if
    too many of those came from the request's address."""
    service, peer = service_of(request), peer_of(request)
    service.strangers.admit(token, peer)
    caller = _caller(service, token) if len(token) <= LONGEST_TOKEN_CHARACTERS else None
    if caller is None:
        service.strangers.note_refused(token, peer)
        raise Unauthenticated(
            "this token opens nothing: it may be mistyped, expired or revoked. `celeriac token "
            "create` makes another"
        )
    service.strangers.note_good(token)
    return caller


def _caller(service: Service, token: str) -> Caller | None:
    if service.issuer is not None and not token.startswith(tokens.SCHEME):
        return service.issuer.caller(token)
    with service.ready().begin() as connection:
        found = tokens.find(connection, token)
    if found is None:
        logger.info("a token that is nobody's was refused")
        return None
    if found.refused_because is None:
        return Caller(found.tenant_id, found.user_id, frozenset(found.roles), found.token_id)
    if found.is_first_refusal:  # of this minute: it may be asked for a thousand times
        with service.tenant(found.tenant_id).begin() as connection:
            audit_trail.note_denial(
                connection,
                found.tenant_id,
                found.user_id,
                "token.use",
                found.token_id,
                error=found.refused_because,
            )
    return None
