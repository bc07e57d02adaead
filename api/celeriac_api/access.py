"""`/v1/principals` and `/v1/tokens`: who may decide what, and who may use this API.

For administrators of a tenant, and about that tenant alone. Each change is a row of the audit
trail.
"""

from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from celeriac.client.access import ANYTHING, CreateToken, RevokeToken, SetPrincipal
from celeriac.errors import UnknownToken
from celeriac.ids import TokenId, UserId, checked_id, is_id
from celeriac.principal import permissions_from_json
from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import require
from celeriac_api.caller import service_of
from celeriac_api.idempotency import CurrentOrder, Order, Reply
from celeriac_api.models import access as models
from celeriac_api.models.body import Nothing
from celeriac_api.models.responses import answers
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage import principals, tokens

router = APIRouter(prefix="/v1", tags=["access"], route_class=JsonRoute)


@router.get("/principals", responses=answers(200, models.Principals, "All that are registered"))
def list_principals(request: Request, caller: CurrentCaller) -> Response:
    """The persons whose roles and limits are known."""
    require(caller, "list_principals", is_own=False)
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        found = principals.list_principals(connection, caller.tenant_id)
    return json_response({"principals": found})


@router.put("/principals/{user_id}", responses=answers(200, models.PrincipalModel, "As set"))
def set_principal(user_id: str, body: models.SetPrincipal, order: CurrentOrder) -> Response:
    """Say what a person may decide, instead of what was said before. A call that starts later is
    checked against it, even if it was approved before."""
    caller = order.caller
    permissions = ANYTHING if body.permissions is None else permissions_from_json(body.permissions)
    operation = SetPrincipal(
        caller.tenant_id,
        UserId(checked_id(user_id, "user id")),
        body.roles,
        permissions,
        body.disabled,
        caller.user_id,
    )
    return order.carry_out(operation, lambda said: Reply(200, said), _administrator(order))


@router.get("/tokens", responses=answers(200, models.Tokens, "The oldest first"))
def list_tokens(request: Request, caller: CurrentCaller) -> Response:
    """The tokens of the tenant, never what they are."""
    require(caller, "list_tokens", is_own=False)
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        return json_response({"tokens": tokens.list_tokens(connection, caller.tenant_id)})


@router.post(
    "/tokens",
    status_code=201,
    responses=answers(201, models.NewTokenModel, "The token, this once"),
)
def create_token(body: models.CreateToken, order: CurrentOrder) -> Response:
    """Make a token. What it is, is answered this once and kept nowhere: a repeat with the same key
    is told 410."""
    order.require_key()
    caller = order.caller
    operation = CreateToken(
        caller.tenant_id,
        UserId(body.user_id),
        caller.user_id,
        body.name,
        body.roles,
        body.expires_days,
    )
    return order.carry_out(
        operation, lambda made: Reply(201, made, is_kept=False), _administrator(order)
    )


@router.post("/tokens/{token_id}/revoke", responses=answers(200, models.TokenModel, "The token"))
def revoke_token(token_id: str, order: CurrentOrder, _: Nothing | None = None) -> Response:
    """Let a token open nothing any more, from the next request on."""
    check = _administrator(order)

    def check_both(connection: Connection) -> None:
        check(connection)
        if not is_id(token_id):
            raise UnknownToken(f"there is no token {token_id}")

    caller = order.caller
    operation = RevokeToken(caller.tenant_id, TokenId(token_id), caller.user_id)
    return order.carry_out(operation, lambda ended: Reply(200, ended), check_both)


def _administrator(order: Order) -> Callable[[Connection], None]:
    def check(_: Connection) -> None:
        require(order.caller, order.action, is_own=False)

    return check
