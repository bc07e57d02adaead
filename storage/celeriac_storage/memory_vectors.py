"""The vectors of a user's memories: which are lacking, and storing those that were made.

A vector is one of a version of a memory and of an embedder. The database drops it when the memory
changes, and nothing compares vectors of two embedders, so a new embedder makes them all anew.

Vectors are made outside of any transaction. Who stores one takes the owner's lock and looks at the
version again, or a memory that is forgotten meanwhile would leave its vector behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import TenantId, UserId
from celeriac.memory.candidate import text_of
from celeriac.memory.embedding import Vector
from celeriac_storage.memories import IN_NAMESPACES, LIVE
from celeriac_storage.remembering import lock_owner


@dataclass(frozen=True, slots=True)
class Lacking:
    """A version of a memory that has no vector of that embedder."""

    namespace: str
    key: str
    version: int
    text: str  # what the vector is to be made of


def lacking(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    embedder: str,
    *,
    namespaces: Sequence[str] | None,
    limit: int,
) -> list[Lacking]:
    """Those of the owner's memories, in these namespaces or in all, that have no vector of this
    embedder, changed last first."""
    rows: Any = connection.exec_driver_sql(
        f"""
        SELECT namespace, memory_key, version, content FROM celeriac.memories AS memory
        WHERE tenant_id = %(tenant_id)s AND user_id = %(owner_id)s AND {LIVE}
            AND {IN_NAMESPACES} AND NOT EXISTS (
                SELECT FROM celeriac.memory_vectors AS made
                WHERE (made.tenant_id, made.user_id, made.namespace, made.memory_key, made.version)
                    = (memory.tenant_id, memory.user_id, memory.namespace, memory.memory_key,
                        memory.version) AND made.embedder = %(embedder)s
            )
        ORDER BY changed_at DESC, namespace, memory_key LIMIT %(limit)s
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": owner_id,
            "namespaces": None if namespaces is None else list(namespaces),
            "embedder": embedder,
            "limit": limit,
        },
    )
    return [
        Lacking(namespace, key, version, f"{_spelt(key)}: {text_of(content)}")
        for namespace, key, version, content in rows
    ]


def keep(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    embedder: str,
    made: Sequence[tuple[Lacking, Vector]],
) -> int:
    """Store these vectors, but for those of memories that have changed since; how many that were.
    Needs a transaction."""
    lock_owner(connection, tenant_id, owner_id)
    return connection.exec_driver_sql(
        f"""
        INSERT INTO celeriac.memory_vectors AS known (tenant_id, user_id, namespace, memory_key,
            embedder, version, embedding)
        SELECT tenant_id, user_id, namespace, memory_key, %(embedder)s, version, embedding::real[]
        FROM celeriac.memories
        JOIN unnest(%(namespaces)s::text[], %(keys)s::text[], %(versions)s::integer[],
            %(vectors)s::text[]) AS made (namespace, memory_key, version, embedding)
            USING (namespace, memory_key, version)
        WHERE tenant_id = %(tenant_id)s AND user_id = %(owner_id)s AND {LIVE}
        ON CONFLICT (tenant_id, user_id, namespace, memory_key, embedder) DO UPDATE
            SET version = excluded.version, embedding = excluded.embedding,
                made_at = clock_timestamp()
        """,
        {
            "tenant_id": tenant_id,
            "owner_id": owner_id,
            "embedder": embedder,
            "namespaces": [each.namespace for each, _ in made],
            "keys": [each.key for each, _ in made],
            "versions": [each.version for each, _ in made],
            "vectors": [as_text(vector) for _, vector in made],
        },
    ).rowcount


_ABANDONED = """
WITH RECURSIVE made_by (embedder) AS (  -- by the index, each once, however many vectors there are
    SELECT min(embedder) FROM celeriac.memory_vectors
    UNION ALL SELECT (SELECT min(embedder) FROM celeriac.memory_vectors AS other
        WHERE other.embedder > made_by.embedder)
    FROM made_by WHERE embedder IS NOT NULL
), used AS (
    SELECT DISTINCT ON (agent) definition #>> '{memory,embedder}' AS embedder
    FROM celeriac.agents ORDER BY agent, registered_at DESC
)
SELECT ctid FROM celeriac.memory_vectors
WHERE embedder IN (SELECT embedder FROM made_by EXCEPT SELECT embedder FROM used)
    AND made_at < clock_timestamp() - make_interval(secs => %(seconds)s)
    AND tenant_id = coalesce(%(tenant_id)s::text, tenant_id)
"""


def count_abandoned(
    connection: Connection, *, older_than_seconds: float, tenant_id: TenantId | None
) -> int:
    """How many vectors `prune` would take."""
    return int(
        connection.exec_driver_sql(
            f"SELECT count(*) FROM ({_ABANDONED}) AS vector",
            {"seconds": older_than_seconds, "tenant_id": tenant_id},
        ).scalar_one()
    )


def prune(
    connection: Connection,
    *,
    older_than_seconds: float,
    tenant_id: TenantId | None,
    at_most: int,
) -> int:
    """Delete vectors that were made at least so long ago by an embedder that no agent has, as a
    worker last registered it; how many. What somebody has locked is passed over."""
    return connection.exec_driver_sql(
        "DELETE FROM celeriac.memory_vectors"
        f" WHERE ctid = ANY (ARRAY({_ABANDONED} LIMIT %(at_most)s FOR UPDATE SKIP LOCKED))",
        {"seconds": older_than_seconds, "tenant_id": tenant_id, "at_most": at_most},
    ).rowcount


def distance(connection: Connection) -> str:
    """SQL for how far `embedding` is from the parameter `vector`; both are of length 1.

    With the extension pgvector, where the database has it; else by a sum over both arrays, which
    takes longer and comes to the same.
    """
    schema: str | None = connection.exec_driver_sql(
        "SELECT quote_ident(nspname) FROM pg_extension"
        " JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'"
    ).scalar()
    if schema is None:
        return (
            "-(SELECT sum(one::float8 * other)"
            " FROM unnest(embedding, %(vector)s::real[]) AS pair (one, other))"
        )
    vector = f"%(vector)s::real[]::{schema}.vector"
    return f"embedding::{schema}.vector OPERATOR({schema}.<#>) {vector}"


def as_text(vector: Vector) -> str:
    """A vector as PostgreSQL reads it: an array of numbers."""
    return "{" + ",".join(f"{number:.8g}" for number in vector) + "}"


def _spelt(key: str) -> str:
    return key.replace("_", " ").replace("-", " ")
