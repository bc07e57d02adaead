"""Who may decide, and who may use the HTTP API: what clients ask about principals and tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from celeriac.client.ask import Ask
from celeriac.client.named import user_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Flow, get, post, put, refuse_speaker
from celeriac.errors import InvalidInput, UnknownToken
from celeriac.ids import TenantId, TokenId, UserId, is_id
from celeriac.principal import Permissions, permissions_to_json
from celeriac.reports import NewToken, Principal, Token
from celeriac.roles import WORDS
from celeriac_storage import principals, tokens

if TYPE_CHECKING:
    from celeriac.client.database import DatabaseDesk
    from celeriac.codec import JsonValue

ANYTHING: Permissions = {"*": ()}


@dataclass(frozen=True, slots=True)
class SetPrincipal(Operation[Principal]):
    """Say what a person may decide, instead of what was said before."""

    tenant_id: TenantId
    user_id: UserId
    roles: Sequence[str]
    permissions: Permissions
    is_disabled: bool
    by: UserId

    def act(self, connection: Connection) -> Principal:
        return principals.set_principal(
            connection,
            self.tenant_id,
            self.user_id,
            roles=self.roles,
            permissions=self.permissions,
            is_disabled=self.is_disabled,
            by=self.by,
        )


@dataclass(frozen=True, slots=True)
class CreateToken(Operation[NewToken]):
    """Make a token. Raises `InvalidInput` for a role that there is not."""

    tenant_id: TenantId
    user_id: UserId
    by: UserId
    name: str = ""
    roles: Sequence[str] = field(default_factory=list)  # none: user
    expires_days: float | None = None

    def act(self, connection: Connection) -> NewToken:
        if unknown := set(self.roles) - set(WORDS):
            raise InvalidInput(f"there is no role {min(unknown)}: the roles are {', '.join(WORDS)}")
        made, secret = tokens.create(
            connection,
            self.tenant_id,
            self.user_id,
            name=self.name or f"token of {self.user_id}",
            roles=self.roles or ["user"],
            expires_days=self.expires_days,
            by=self.by,
        )
        return NewToken.of(made, secret)


@dataclass(frozen=True, slots=True)
class RevokeToken(Operation[Token]):
    """Let a token open nothing any more. Raises `UnknownToken`."""

    tenant_id: TenantId
    token_id: TokenId
    by: UserId

    def act(self, connection: Connection) -> Token:
        return tokens.revoke(connection, self.tenant_id, self.token_id, self.by)


def list_principals() -> Ask[list[Principal]]:
    """The persons whose roles and limits are known."""

    def in_database(desk: "DatabaseDesk") -> list[Principal]:
        return desk.read(lambda found: principals.list_principals(found, desk.tenant_id))

    def over_http() -> Flow[list[Principal]]:
        told = yield get("/v1/principals")
        return [reader(Principal)(each) for each in told["principals"]]

    return Ask(in_database, over_http)


def set_principal(
    user_id: str,
    *,
    roles: Sequence[str] = (),
    permissions: Permissions | None = None,
    disabled: bool = False,
    by: str | None = None,
) -> Ask[Principal]:
    """Say what a person may decide, instead of what was said before.

    `permissions`: by the name of a tool, or `*` for all others, conditions that the arguments
    must fulfil; a tool that is not there may not be decided. Without it there are no limits. A
    call that starts after this returns is checked against it, even if it was approved before.
    """
    user, person = user_named(user_id), user_or_default(by)
    limits = ANYTHING if permissions is None else permissions

    def over_http() -> Flow[Principal]:
        refuse_speaker(by)
        said: dict[str, JsonValue] = {
            "roles": list(roles),
            "permissions": permissions_to_json(limits),
            "disabled": disabled,
        }
        return reader(Principal)((yield put(f"/v1/principals/{user}", said)))

    return Ask(
        lambda desk: desk.perform(
            SetPrincipal(desk.tenant_id, user, roles, limits, disabled, person)
        ),
        over_http,
    )


def list_tokens() -> Ask[list[Token]]:
    """The tokens of the tenant, the oldest first, never what they are."""

    def in_database(desk: "DatabaseDesk") -> list[Token]:
        return desk.read(lambda found: tokens.list_tokens(found, desk.tenant_id))

    def over_http() -> Flow[list[Token]]:
        told = yield get("/v1/tokens")
        return [reader(Token)(each) for each in told["tokens"]]

    return Ask(in_database, over_http)


def create_token(
    user_id: str,
    *,
    roles: Sequence[str] = (),
    name: str = "",
    expires_days: float | None = None,
    by: str | None = None,
) -> Ask[NewToken]:
    """Make a bearer token for the HTTP API, which is in `token` of what is returned, this once:
    nobody can find it out again.

    `roles`: `user` (the default), `operator`, `admin`. Raises `InvalidInput`. Over HTTP it may
    raise `KeyPruned`: the token was made, and the answer that had it got lost; revoke that one.
    """
    user, person = user_named(user_id), user_or_default(by)

    def over_http() -> Flow[NewToken]:
        refuse_speaker(by)
        said: dict[str, JsonValue] = {
            "user_id": user,
            "name": name,
            "roles": list(roles),
            "expires_days": expires_days,
        }
        if_lost = "It is not known whether a token was made: look at the list, and revoke it if so"
        return reader(NewToken)((yield post("/v1/tokens", said, if_lost=if_lost)))

    return Ask(
        lambda desk: desk.perform(
            CreateToken(desk.tenant_id, user, person, name, roles, expires_days)
        ),
        over_http,
    )


def revoke_token(token_id: str, *, by: str | None = None) -> Ask[Token]:
    """Let a token open nothing any more, from now on. Raises `UnknownToken`."""
    if not is_id(token_id):
        raise UnknownToken(f"there is no token {token_id!r}; `celeriac token list` lists all")
    token, person = TokenId(token_id), user_or_default(by)

    def over_http() -> Flow[Token]:
        refuse_speaker(by)
        return reader(Token)((yield post(f"/v1/tokens/{token}/revoke")))

    return Ask(lambda desk: desk.perform(RevokeToken(desk.tenant_id, token, person)), over_http)
