"""Who asks, as a request knows it."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, cast

from fastapi import Request

from celeriac.ids import TenantId, TokenId, UserId

if TYPE_CHECKING:
    from celeriac_api.service import Service


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of the token that a request came with."""

    tenant_id: TenantId
    user_id: UserId
    roles: frozenset[str]
    token_id: TokenId | None  # None: a token of another issuer, or a one-time token
    expires_at: datetime | None = None  # where the token itself says so


def service_of(request: Request) -> "Service":
    """What the requests of this process share."""
    return cast("Service", request.app.state.service)


def peer_of(request: Request) -> str:
    """The address that the request comes from, as far as it is known."""
    return request.client.host if request.client is not None else ""


def caller_of(request: Request) -> Caller:
    """Known once the request is authenticated."""
    return cast(Caller, request.state.caller)
