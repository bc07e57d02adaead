"""Bearer tokens of the HTTP API. The database knows their hashes alone."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac import reports
from celeriac.errors import UnknownToken
from celeriac.ids import TenantId, TokenId, UserId, new_token_id
from celeriac_storage import audit_trail
from celeriac_storage.owners import know_tenant

SCHEME = "cel_"
"""What every token begins with, so that one is known for what it is wherever it turns up."""

SECRET_BYTES = 32
PREFIX_CHARACTERS = len(SCHEME) + 6  # 36 of 256 bits


@dataclass(frozen=True, slots=True)
class Found:
    """Whose token was shown, and why it is not good any more, if so."""

    token_id: TokenId
    tenant_id: TenantId
    user_id: UserId
    roles: Sequence[str]
    refused_because: str | None  # revoked, expired
    is_first_refusal: bool  # within a minute


def create(
    connection: Connection,
    tenant_id: TenantId,
    user_id: UserId,
    *,
    name: str,
    roles: Sequence[str],
    expires_days: float | None,
    by: UserId,
) -> tuple[reports.Token, str]:
    """Make a token; the second value is the token itself, which nobody can find out again. Needs a
    transaction."""
    secret = SCHEME + secrets.token_urlsafe(SECRET_BYTES)
    know_tenant(connection, tenant_id)
    row = connection.exec_driver_sql(
        f"""
        INSERT INTO celeriac.tokens AS token (token_id, tenant_id, user_id, name, prefix, hash,
            roles, created_by, expires_at)
        VALUES (%(token_id)s, %(tenant_id)s, %(user_id)s, %(name)s, %(prefix)s, %(hash)s,
            %(roles)s, %(by)s, clock_timestamp() + make_interval(secs => %(expires_seconds)s))
        RETURNING {_COLUMNS}
        """,
        {
            "token_id": new_token_id(),
            "tenant_id": tenant_id,
            "user_id": user_id,
            "name": name,
            "prefix": secret[:PREFIX_CHARACTERS],
            "hash": hash_of(secret),
            "roles": sorted(set(roles)),
            "by": by,
            "expires_seconds": None if expires_days is None else expires_days * 86_400,
        },
    ).one()
    token = reports.Token(*row)
    _note(connection, token, "token.create", by)
    return token, secret


def list_tokens(connection: Connection, tenant_id: TenantId | None = None) -> list[reports.Token]:
    """The tokens of the tenant, or of all, the oldest first."""
    rows: Any = connection.exec_driver_sql(
        f"""
        SELECT {_COLUMNS} FROM celeriac.tokens AS token
        WHERE tenant_id = coalesce(%s::text, tenant_id) ORDER BY created_at, token_id
        """,
        (tenant_id,),
    )
    return [reports.Token(*row) for row in rows]


def revoke(
    connection: Connection, tenant_id: TenantId, token_id: TokenId, by: UserId
) -> reports.Token:
    """Let the tenant's token open nothing any more, from the commit on. Needs a transaction.

    Revoking it again changes nothing. Raises `UnknownToken`.
    """
    row = connection.exec_driver_sql(
        f"""
        UPDATE celeriac.tokens AS token SET revoked_at = coalesce(revoked_at, clock_timestamp()),
            revoked_by = coalesce(revoked_by, %s)
        WHERE token_id = %s AND tenant_id = %s RETURNING {_COLUMNS}
        """,
        (by, token_id, tenant_id),
    ).fetchone()
    if row is None:
        raise UnknownToken(f"there is no token {token_id}; `celeriac token list` lists all")
    token = reports.Token(*row)
    _note(connection, token, "token.revoke", by)
    return token


def find(connection: Connection, secret: str) -> Found | None:
    """Whose token this is; None if it is nobody's. Notes that it was used, or was refused.

    The work is the same for a token that is there and one that is not: one look by a hash, which
    tells nothing of how much of the token was right.
    """
    row: Any = connection.exec_driver_sql(
        "SELECT token_id, tenant_id, user_id, roles, refused_because, is_first_refusal"
        " FROM celeriac.find_token(%s)",
        (hash_of(secret),),
    ).fetchone()
    return None if row is None else Found(*row)


_COLUMNS = """token.token_id, token.tenant_id, token.user_id, token.name, token.prefix, token.roles,
    token.created_at, token.expires_at, token.revoked_at, token.last_used_at"""


def hash_of(secret: str) -> bytes:
    """What the database knows of a secret: enough to find it by, and nothing to open with."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _note(connection: Connection, token: reports.Token, action: str, by: UserId) -> None:
    audit_trail.note(
        connection,
        TenantId(token.tenant_id),
        by,
        action,
        token.token_id,
        user=token.user_id,
        name=token.name,
        roles=list(token.roles),
    )
