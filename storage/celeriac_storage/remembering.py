"""From a candidate to a memory: the decision's row and what it led to, in one transaction.

Who remembers for an owner takes the owner's advisory lock first, for the length of the transaction:
so the version that was looked at is the one that is replaced, and the count of memories is right.
"""

import hashlib
from dataclasses import dataclass

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import TenantId
from celeriac.memory.candidate import MemoryCandidate, MemoryKind, is_key, text_of
from celeriac.memory.policy import MemoryDecision, MemoryPolicy, Reason
from celeriac.memory.sensitive import kinds_of_secret, withhold
from celeriac.memory.words import words
from celeriac_storage.database import fetch_row


@dataclass(frozen=True, slots=True)
class Remembered:
    """What came of a candidate."""

    decision_id: int
    decision: MemoryDecision
    version: int | None  # of the memory now; None if there is none under this key


def remember(
    connection: Connection,
    tenant_id: TenantId,
    candidate: MemoryCandidate,
    policy: MemoryPolicy,
    *,
    proposed_by: str,
    replaces_version: int | None = None,
) -> Remembered:
    """Have the policy decide, record that, and keep what it allows. Needs a transaction.

    What is there under the key is replaced only if `replaces_version` is its version now; else the
    candidate is refused as a conflict. The owner must be known (`owners`), and valid.
    """
    lock_owner(connection, tenant_id, candidate.owner_id)
    version, is_live, live_count = _look(connection, tenant_id, candidate)
    decision = policy.evaluate(candidate)
    if decision.store and is_live and replaces_version != version:
        decision = MemoryDecision(
            Reason.CONFLICT,
            f"version {version} is remembered under this key: to replace it, give its version",
        )
    elif decision.store and not is_live and replaces_version is not None:
        decision = MemoryDecision(
            Reason.CONFLICT, "nothing is remembered under this key that could be replaced"
        )
    elif decision.store and not is_live and live_count >= policy.most_memories:
        decision = MemoryDecision(
            Reason.FULL, f"{live_count} memories are kept already, and one must be forgotten first"
        )
    decision_id = _record(connection, tenant_id, candidate, policy, decision, proposed_by)
    if decision.store:
        version = _keep(connection, tenant_id, candidate, decision_id, version)
    elif not is_live:
        version = None
    return Remembered(decision_id, decision, version)


def lock_owner(connection: Connection, tenant_id: TenantId, owner_id: str) -> None:
    """Wait until no other transaction changes what is remembered of this user."""
    name = hashlib.sha256(f"memories of {tenant_id}:{owner_id}".encode()).digest()
    connection.exec_driver_sql(
        "SELECT pg_advisory_xact_lock(%s)", (int.from_bytes(name[:8], "big", signed=True),)
    )


def _look(
    connection: Connection, tenant_id: TenantId, candidate: MemoryCandidate
) -> tuple[int | None, bool, int]:
    """The version under the key, whether it is neither deleted nor expired, and how many such
    memories the owner has."""
    row = fetch_row(
        connection,
        """
        SELECT max(version) FILTER (WHERE is_this), bool_or(is_this AND is_live) IS TRUE,
            count(*) FILTER (WHERE is_live)
        FROM (
            SELECT version, namespace = %(namespace)s AND memory_key = %(key)s AS is_this,
                deleted_at IS NULL AND (expires_at <= clock_timestamp()) IS NOT TRUE AS is_live
            FROM celeriac.memories WHERE tenant_id = %(tenant_id)s AND user_id = %(owner_id)s
        ) AS known
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": candidate.owner_id,
            "namespace": _storable(candidate.namespace),
            "key": _storable(candidate.key),
        },
    )
    assert row is not None
    return row[0], bool(row[1]), int(row[2])


def _record(
    connection: Connection,
    tenant_id: TenantId,
    candidate: MemoryCandidate,
    policy: MemoryPolicy,
    decision: MemoryDecision,
    proposed_by: str,
) -> int:
    source = candidate.source
    is_sensitive = decision.reason is Reason.SENSITIVE
    # Of a short secret even the hash would tell: it is that of what is left without it.
    content = withhold(candidate.value) if is_sensitive else candidate.value
    if candidate.sensitive and is_sensitive and content == candidate.value:
        content = None
    row = fetch_row(
        connection,
        """
        INSERT INTO celeriac.memory_decisions (tenant_id, user_id, verdict, reason, namespace,
            memory_key, kind, content_hash, origin, run_id, call_id, message_position,
            source_call_id, approval_id, proposed_by, policy_version)
        VALUES (%(tenant_id)s, %(owner_id)s, %(verdict)s, %(reason)s, %(namespace)s, %(key)s,
            %(kind)s, sha256(convert_to(%(content)s::jsonb::text, 'UTF8')), %(origin)s, %(run_id)s,
            %(call_id)s, %(message_position)s, %(source_call_id)s, %(approval_id)s, %(proposed_by)s,
            %(policy_version)s)
        RETURNING decision_id
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": candidate.owner_id,
            "verdict": "allow" if decision.store else "refuse",
            "reason": decision.reason.value,
            "namespace": _storable(candidate.namespace),
            "key": _storable(candidate.key),
            "kind": candidate.kind if candidate.kind in list(MemoryKind) else None,
            "content": dumps(content),
            "origin": source.origin.value,
            "run_id": source.run_id,
            "call_id": source.call_id,
            "message_position": source.message_position,
            "source_call_id": source.source_call_id,
            "approval_id": candidate.approval_id,
            "proposed_by": proposed_by,
            "policy_version": policy.version,
        },
    )
    assert row is not None
    return int(row[0])


def _keep(
    connection: Connection,
    tenant_id: TenantId,
    candidate: MemoryCandidate,
    decision_id: int,
    replaced: int | None,
) -> int:
    row = fetch_row(
        connection,
        """
        INSERT INTO celeriac.memories AS memory (tenant_id, user_id, namespace, memory_key, kind,
            version, content, content_hash, search, decision_id, expires_at)
        VALUES (%(tenant_id)s, %(owner_id)s, %(namespace)s, %(key)s, %(kind)s, 1,
            %(content)s::jsonb, '', to_tsvector('english', %(words)s), %(decision_id)s,
            clock_timestamp() + make_interval(secs => %(expires_seconds)s))
        ON CONFLICT (tenant_id, user_id, namespace, memory_key) DO UPDATE SET
            version = memory.version + 1, kind = excluded.kind, content = excluded.content,
            content_hash = excluded.content_hash, search = excluded.search,
            decision_id = excluded.decision_id, expires_at = excluded.expires_at,
            changed_at = clock_timestamp(), deleted_at = NULL, deleted_by = NULL
            WHERE memory.version = %(replaced)s
        RETURNING version
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": candidate.owner_id,
            "namespace": candidate.namespace,
            "key": candidate.key,
            "kind": str(candidate.kind),
            "content": dumps(candidate.value),
            "words": searched_words(candidate.key, candidate.value),
            "decision_id": decision_id,
            "expires_seconds": None
            if candidate.expires_days is None
            else candidate.expires_days * 86_400.0,
            "replaced": replaced,
        },
    )
    assert row is not None, "nobody else changes the owner's memories before this commits"
    return int(row[0])


def searched_words(key: str, value: JsonValue) -> str:
    """What a search looks at."""
    return " ".join(words(f"{key} {text_of(value)}".replace("_", " ").replace("-", " ")))


def _storable(name: str) -> str | None:
    """A key or a namespace, unless it can be none, or holds something itself."""
    return name if is_key(name) and not kinds_of_secret(name) else None
