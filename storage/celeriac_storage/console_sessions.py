"""Who is signed in to the console. As of tokens, the database knows the hashes alone.

A session is opened by a good token of the API, or by a one-time token: a row that waits for whoever
shows it first. It ends when it is signed out, with its time, or with the token that opened it.
"""

import secrets
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from celeriac.ids import SessionId, TenantId, TokenId, UserId, new_session_id
from celeriac_storage import audit_trail
from celeriac_storage.owners import know_tenant
from celeriac_storage.tokens import hash_of

ONE_TIME_SCHEME = "cel1_"
"""What a one-time token begins with. It opens no API."""

SECRET_BYTES = 32
LASTS_SECONDS = 12 * 3600.0
CODE_LASTS_SECONDS = 24 * 3600.0
KEPT_HOURS = 24  # after its end


@dataclass(frozen=True, slots=True)
class Session:
    """Who is signed in."""

    session_id: SessionId
    tenant_id: TenantId
    user_id: UserId
    roles: frozenset[str]
    token_id: TokenId | None
    expires_at: datetime


def open_with_token(
    connection: Connection,
    tenant_id: TenantId,
    user_id: UserId,
    roles: Collection[str],
    token_id: TokenId | None,
    *,
    until: datetime | None,
) -> str:
    """Open a session for whoever has shown a good token, at most `until` that ends; its cookie,
    which nobody can find out again. Needs a transaction."""
    cookie = secrets.token_urlsafe(SECRET_BYTES)
    session_id = new_session_id()
    know_tenant(connection, tenant_id)
    connection.exec_driver_sql(
        """
        INSERT INTO celeriac.console_sessions (session_id, tenant_id, user_id, roles, token_id,
            hash, opened_at, expires_at)
        SELECT %(session_id)s, %(tenant_id)s, %(user_id)s, %(roles)s, %(token_id)s, %(hash)s, now,
            least(now + make_interval(secs => %(lasts_seconds)s), %(until)s)
        FROM clock_timestamp() AS now
        """,
        {
            "session_id": session_id,
            "tenant_id": tenant_id,
            "user_id": user_id,
            "roles": sorted(roles),
            "token_id": token_id,
            "hash": hash_of(cookie),
            "lasts_seconds": LASTS_SECONDS,
            "until": until,
        },
    )
    audit_trail.note(connection, tenant_id, user_id, "console.sign_in", session_id, token=token_id)
    return cookie


def make_one_time_token(
    connection: Connection, tenant_id: TenantId, user_id: UserId, roles: Collection[str]
) -> str:
    """A token with which one person signs in once, within a day. Needs a transaction."""
    code = ONE_TIME_SCHEME + secrets.token_urlsafe(SECRET_BYTES)
    know_tenant(connection, tenant_id)
    connection.exec_driver_sql(
        """
        INSERT INTO celeriac.console_sessions (session_id, tenant_id, user_id, roles, code_hash,
            code_expires_at)
        VALUES (%s, %s, %s, %s, %s, clock_timestamp() + make_interval(secs => %s))
        """,
        (new_session_id(), tenant_id, user_id, sorted(roles), hash_of(code), CODE_LASTS_SECONDS),
    )
    return code


def open_with_one_time_token(connection: Connection, code: str) -> str | None:
    """The cookie of the session that it opens; None if it opens none, or none any more. Of two who
    show it, one comes in. Needs a transaction."""
    cookie = secrets.token_urlsafe(SECRET_BYTES)
    is_open = connection.exec_driver_sql(
        "SELECT celeriac.open_console_session(%s, %s, %s)",
        (hash_of(code), hash_of(cookie), LASTS_SECONDS),
    ).scalar_one()
    return cookie if is_open else None


def find(connection: Connection, cookie: str) -> Session | None:
    """Who is signed in with this cookie, if somebody still is."""
    row = connection.exec_driver_sql(
        "SELECT session_id, tenant_id, user_id, roles, token_id, expires_at"
        " FROM celeriac.find_console_session(%s)",
        (hash_of(cookie),),
    ).fetchone()
    if row is None:
        return None
    session_id, tenant_id, user_id, roles, token_id, expires_at = row
    return Session(session_id, tenant_id, user_id, frozenset(roles), token_id, expires_at)


def end(connection: Connection, session: Session) -> None:
    """Sign out: the cookie opens nothing any more. Needs a transaction."""
    ended = connection.exec_driver_sql(
        "UPDATE celeriac.console_sessions SET ended_at = clock_timestamp()"
        " WHERE session_id = %s AND ended_at IS NULL RETURNING session_id",
        (session.session_id,),
    ).fetchone()
    if ended is not None:
        audit_trail.note(
            connection, session.tenant_id, session.user_id, "console.sign_out", session.session_id
        )


def forget(connection: Connection, *, limit: int) -> int:
    """Delete sessions, and one-time tokens that nobody has shown, that were over for `KEPT_HOURS`,
    at most `limit`; how many there were."""
    return connection.exec_driver_sql(
        """
        DELETE FROM celeriac.console_sessions WHERE session_id IN (
            SELECT session_id FROM celeriac.console_sessions
            WHERE least(ended_at, coalesce(expires_at, code_expires_at))
                < clock_timestamp() - make_interval(hours => %s)
            ORDER BY least(ended_at, coalesce(expires_at, code_expires_at)) LIMIT %s
        )
        """,
        (KEPT_HOURS, limit),
    ).rowcount
