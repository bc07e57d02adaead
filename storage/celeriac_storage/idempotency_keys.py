"""Requests that were answered already: a repeat is told the same and does nothing again.

The claim, what the request did and its answer are one transaction. So there is no state between:
a process that dies leaves either all of it or nothing, and a repeat that comes meanwhile waits for
the first one's commit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celeriac.codec import JsonValue, dumps
from celeriac.errors import KeyInUse, KeyPruned, KeyReused
from celeriac.ids import TenantId
from celeriac_storage.database import sqlstate
from celeriac_storage.owners import know_tenant

WAIT_SECONDS = 2
"""How long a repeat waits for the first request, which holds its key until it commits."""

KEPT_HOURS = 48
"""How long an answer can be asked for again. The key itself is kept: it never acts twice."""

_LOCK_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True, slots=True)
class Key:
    """Names one request of one principal to one operation."""

    tenant_id: TenantId
    principal: str
    operation: str
    key: str  # 1 to 255 visible ASCII characters
    fingerprint: bytes  # sha256 of what is asked for

    @property
    def parameters(self) -> dict[str, Any]:
        return {
            "tenant_id": self.tenant_id,
            "principal": self.principal,
            "operation": self.operation,
            "key": self.key,
        }


@dataclass(frozen=True, slots=True)
class Answer:
    """What was sent: the body as JSON text."""

    status: int
    headers: Mapping[str, str]
    body: str


def claim(connection: Connection, key: Key) -> Answer | None:
    """Take the key for this transaction, which must give its `answer`; or the answer that is there.

    Raises `KeyReused` if it was given to another request, `KeyInUse` if that one is still at work
    after `WAIT_SECONDS`, and `KeyPruned` if its answer is not kept any more.
    """
    # A tenant's first request may come before its first run.
    know_tenant(connection, key.tenant_id)
    limit = connection.exec_driver_sql("SHOW lock_timeout").scalar_one()
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'")
    try:
        # Of two at once, one inserts and the other waits here until that one has ended.
        claimed = connection.exec_driver_sql(
            """
            INSERT INTO celeriac.idempotency_keys
                (tenant_id, principal, operation, key, fingerprint)
            VALUES (%(tenant_id)s, %(principal)s, %(operation)s, %(key)s, %(fingerprint)s)
            ON CONFLICT DO NOTHING RETURNING true
            """,
            {**key.parameters, "fingerprint": key.fingerprint},
        ).fetchone()
    except DBAPIError as error:
        if sqlstate(error) != _LOCK_NOT_AVAILABLE:
            raise
        raise KeyInUse(
            f"the first request with the idempotency key {key.key} is still at work; ask again "
            "with the same key"
        ) from error
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{limit}'")
    return None if claimed is not None else _known_answer(connection, key)


def answer(connection: Connection, key: Key, given: Answer) -> None:
    """Store the answer, in the transaction that has claimed the key and done the work."""
    connection.exec_driver_sql(
        """
        UPDATE celeriac.idempotency_keys
        SET status = %(status)s, headers = %(headers)s::jsonb, body = %(body)s
        WHERE tenant_id = %(tenant_id)s AND principal = %(principal)s
            AND operation = %(operation)s AND key = %(key)s AND status IS NULL
        """,
        {
            **key.parameters,
            "status": given.status,
            "headers": dumps(dict(given.headers)),
            "body": given.body,
        },
    )


def keep_no_answer(connection: Connection, key: Key) -> None:
    """Let the answer be told this once, as that of a request that holds a secret: a repeat is told
    `KeyPruned`. In the transaction that has claimed the key and done the work."""
    connection.exec_driver_sql(
        """
        UPDATE celeriac.idempotency_keys SET pruned_at = clock_timestamp()
        WHERE tenant_id = %(tenant_id)s AND principal = %(principal)s
            AND operation = %(operation)s AND key = %(key)s AND status IS NULL
        """,
        key.parameters,
    )


def prune(connection: Connection, *, kept_hours: float = KEPT_HOURS, limit: int = 1000) -> int:
    """Forget the answers that are older, at most `limit` of them; how many. Their keys stay."""
    return connection.exec_driver_sql(
        """
        WITH old AS (
            SELECT tenant_id, principal, operation, key FROM celeriac.idempotency_keys
            WHERE pruned_at IS NULL
                AND created_at < clock_timestamp() - make_interval(secs => %s)
            ORDER BY created_at LIMIT %s FOR UPDATE SKIP LOCKED
        )
        UPDATE celeriac.idempotency_keys AS kept
        SET status = NULL, headers = NULL, body = NULL, pruned_at = clock_timestamp()
        FROM old WHERE (kept.tenant_id, kept.principal, kept.operation, kept.key)
            = (old.tenant_id, old.principal, old.operation, old.key)
        """,
        (kept_hours * 3600, limit),
    ).rowcount


def _known_answer(connection: Connection, key: Key) -> Answer:
    fingerprint, status, headers, body, pruned_at = connection.exec_driver_sql(
        """
        SELECT fingerprint, status, headers, body, pruned_at FROM celeriac.idempotency_keys
        WHERE tenant_id = %(tenant_id)s AND principal = %(principal)s
            AND operation = %(operation)s AND key = %(key)s
        """,
        key.parameters,
    ).one()
    if bytes(fingerprint) != key.fingerprint:
        raise KeyReused(
            f"the idempotency key {key.key} belongs to another request than this one; nothing was "
            "done. Take a new key for each new request"
        )
    if pruned_at is not None:
        raise KeyPruned(
            f"the request with the idempotency key {key.key} was carried out, and its answer is "
            f"not kept any more since {pruned_at.isoformat()}; look at what it did"
        )
    stored: dict[str, JsonValue] = headers
    return Answer(status, {name: str(value) for name, value in stored.items()}, body)
