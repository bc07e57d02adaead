"""What is remembered of a user: listed, and forgotten; always of one owner, or of a tenant for
those who may see that. What is deleted or expired is not there. `ranking` finds what has to do with
a question.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from celeriac import reports
from celeriac.errors import UnknownMemory
from celeriac.ids import RunId, TenantId, UserId
from celeriac.memory.candidate import MemoryKind
from celeriac.memory.recall import Memory, query_words
from celeriac_storage import audit_trail
from celeriac_storage.remembering import lock_owner

MOST_EXPORTED = 100_000

LIVE = "deleted_at IS NULL AND (expires_at <= clock_timestamp()) IS NOT TRUE"
"""Of rows of `celeriac.memories`: those that are there."""

IN_NAMESPACES = "namespace = ANY (coalesce(%(namespaces)s::text[], ARRAY[namespace]))"
"""Of the same: those in these namespaces, or in all for NULL."""

_MEMORY = f"""
SELECT memory.user_id, memory.namespace, memory.memory_key, memory.kind, memory.version,
    memory.content, memory.expires_at, memory.created_at, memory.changed_at, decision.reason,
    memory.decision_id, decision.origin, decision.run_id, decision.call_id,
    decision.message_position, decision.approval_id, decision.proposed_by
FROM celeriac.memories AS memory JOIN celeriac.memory_decisions AS decision USING (decision_id)
WHERE memory.tenant_id = %(tenant_id)s AND {LIVE}
"""


def still_there(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    versions: Sequence[tuple[str, str, int]],
) -> dict[tuple[str, str], Memory]:
    """By namespace and key, those of exactly these versions that are neither deleted, nor expired,
    nor replaced."""
    rows: Any = connection.exec_driver_sql(
        f"""
        SELECT memory.namespace, memory_key, kind, version, content, changed_at
        FROM celeriac.memories AS memory
        JOIN unnest(%(namespaces)s::text[], %(keys)s::text[], %(versions)s::integer[])
            AS wanted (namespace, memory_key, version) USING (namespace, memory_key, version)
        WHERE tenant_id = %(tenant_id)s AND user_id = %(owner_id)s AND {LIVE}
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": owner_id,
            "namespaces": [each[0] for each in versions],
            "keys": [each[1] for each in versions],
            "versions": [each[2] for each in versions],
        },
    )
    found = [as_memory(row) for row in rows]
    return {(memory.namespace, memory.key): memory for memory in found}


def list_memories(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId | None,
    *,
    namespace: str | None = None,
    kind: MemoryKind | None = None,
    query: str = "",
    before: int | None = None,
    limit: int = 100,
) -> list[reports.Memory]:
    """With source and decision, those decided last first: of that owner, or of all of the tenant;
    in that namespace, of that kind, and with a word of `query`, as in `search`; decided before that
    one."""
    wanted = query_words(query)
    if query.strip() and not wanted:
        return []
    rows: Any = connection.exec_driver_sql(
        _MEMORY
        + """
            AND memory.user_id = coalesce(%(owner_id)s::text, memory.user_id)
            AND memory.namespace = coalesce(%(namespace)s::text, memory.namespace)
            AND memory.kind = coalesce(%(kind)s::text, memory.kind)
            AND (%(is_empty)s OR search @@ to_tsquery('english', %(query)s))
            AND (%(before)s::bigint IS NULL OR memory.decision_id < %(before)s::bigint)
        ORDER BY memory.decision_id DESC LIMIT %(limit)s
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": owner_id,
            "namespace": namespace,
            "kind": kind,
            "query": either(wanted),
            "is_empty": not wanted,
            "before": before,
            "limit": limit,
        },
    )
    return [_report(row) for row in rows]


def either(wanted: Sequence[str]) -> str:
    """Any of these words, as `to_tsquery` takes it; none holds what means something there."""
    return " | ".join(f"'{word}'" for word in wanted)


def read(
    connection: Connection, tenant_id: TenantId, owner_id: UserId, namespace: str, key: str
) -> reports.Memory:
    """Raises `UnknownMemory`."""
    found = find(connection, tenant_id, owner_id, namespace, key)
    if found is None:
        raise unknown_memory(owner_id, namespace, key)
    return found


def find(
    connection: Connection, tenant_id: TenantId, owner_id: UserId, namespace: str, key: str
) -> reports.Memory | None:
    """What is remembered under the key, if anything is."""
    row: Any = connection.exec_driver_sql(
        _MEMORY + " AND memory.user_id = %(owner_id)s AND memory.namespace = %(namespace)s"
        " AND memory.memory_key = %(key)s",
        {"tenant_id": tenant_id, "owner_id": owner_id, "namespace": namespace, "key": key},
    ).fetchone()
    return None if row is None else _report(row)


def read_all(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    places: Sequence[tuple[str, str]],
) -> list[reports.Memory]:
    """What is remembered under these namespaces and keys, in no order."""
    rows: Any = connection.exec_driver_sql(
        _MEMORY
        + """
            AND memory.user_id = %(owner_id)s AND (memory.namespace, memory.memory_key) IN (
                SELECT * FROM unnest(%(namespaces)s::text[], %(keys)s::text[])
            )
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": owner_id,
            "namespaces": [each[0] for each in places],
            "keys": [each[1] for each in places],
        },
    )
    return [_report(row) for row in rows]


def forget(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    namespace: str,
    key: str,
    *,
    by: str,
    run_id: RunId | None = None,
) -> bool:
    """Delete what is remembered under the key: of its content nothing is left in its row. Needs a
    transaction. False if there was nothing, which is left as it is.
    """
    lock_owner(connection, tenant_id, owner_id)
    row = connection.exec_driver_sql(
        """
        UPDATE celeriac.memories SET content = NULL, search = NULL, version = version + 1,
            deleted_at = clock_timestamp(), deleted_by = %(by)s, changed_at = clock_timestamp()
        WHERE tenant_id = %(tenant_id)s AND user_id = %(owner_id)s AND namespace = %(namespace)s
            AND memory_key = %(key)s AND deleted_at IS NULL
        RETURNING version
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": owner_id,
            "namespace": namespace,
            "key": key,
            "by": by,
        },
    ).fetchone()
    if row is None:
        return False
    audit_trail.note(
        connection,
        tenant_id,
        by,
        "memory.forget",
        f"{owner_id}/{namespace}/{key}",
        run_id=run_id,
        version=row[0],
    )
    return True


def forget_everything(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    *,
    namespaces: Sequence[str],
    by: str,
    run_id: RunId,
) -> tuple[int, list[str]]:
    """Delete all that is remembered of the owner in these namespaces but what is procedural, each
    as `forget` does; how many those were, and the keys of what stays. Needs a transaction."""
    lock_owner(connection, tenant_id, owner_id)
    there: Any = connection.exec_driver_sql(
        "SELECT namespace, memory_key, kind FROM celeriac.memories WHERE tenant_id = %s"
        " AND user_id = %s AND namespace = ANY (%s) AND deleted_at IS NULL ORDER BY 1, 2",
        (tenant_id, owner_id, list(namespaces)),
    ).all()
    stays = [key for _, key, kind in there if kind == MemoryKind.PROCEDURAL]
    for namespace, key, kind in there:
        if kind != MemoryKind.PROCEDURAL:
            forget(connection, tenant_id, owner_id, namespace, key, by=by, run_id=run_id)
    return len(there) - len(stays), stays


def list_decisions(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId | None,
    *,
    store: bool | None = None,
    run_id: RunId | None = None,
    place: tuple[str, str] | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[reports.MemoryDecision]:
    """The latest first: of that owner or of all of the tenant; those that kept something, or that
    did not; about that run; about that namespace and key."""
    rows: Any = connection.exec_driver_sql(
        """
        SELECT decision_id, user_id, verdict = 'allow', reason, namespace, memory_key, kind, origin,
            run_id, call_id, message_position, source_call_id, approval_id, proposed_by,
            policy_version, encode(content_hash, 'hex'), decided_at
        FROM celeriac.memory_decisions
        WHERE tenant_id = %(tenant_id)s AND user_id = coalesce(%(owner_id)s::text, user_id)
            AND (verdict = 'allow') = coalesce(%(store)s::boolean, verdict = 'allow')
            AND (%(run_id)s::text IS NULL OR run_id = %(run_id)s::text)
            AND (%(key)s::text IS NULL
                OR (namespace, memory_key) = (%(namespace)s::text, %(key)s::text))
            AND (%(before)s::bigint IS NULL OR decision_id < %(before)s::bigint)
        ORDER BY decision_id DESC LIMIT %(limit)s
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": owner_id,
            "store": store,
            "run_id": run_id,
            "namespace": None if place is None else place[0],
            "key": None if place is None else place[1],
            "before": before,
            "limit": limit,
        },
    )
    return [reports.MemoryDecision(*row) for row in rows]


def unknown_memory(owner_id: str, namespace: str, key: str) -> UnknownMemory:
    return UnknownMemory(f"nothing is remembered of {owner_id} under {namespace}/{key}")


def as_memory(row: Any) -> Memory:
    namespace, key, kind, version, content, changed_at = row
    return Memory(namespace, key, MemoryKind(kind), version, content, changed_at)


def _report(row: Any) -> reports.Memory:
    return reports.Memory(*row)
