"""Which of a user's memories have to do with a question: by their words, and by meaning as well
where there are vectors. Always of one owner.

The two orders are put together by the places that a memory has in each, not by scores, which cannot
be compared: reciprocal rank fusion, after Cormack, Clarke and Büttcher (SIGIR 2009).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import TenantId, UserId
from celeriac.memory.embedding import Vector
from celeriac.memory.recall import Memory, query_words
from celeriac_storage import memory_vectors
from celeriac_storage.memories import LIVE, as_memory, either

FUSION = 60
"""How little the first places count beyond those after them; the value of that paper."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is looked for, as a vector of length 1, and by whom it was made."""

    embedder: str
    vector: Vector


def search(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    query: str,
    *,
    namespaces: Sequence[str],
    limit: int,
    meaning: Meaning | None = None,
) -> list[Memory]:
    """The owner's memories that share a word with `query`, the best first; those that rank alike by
    their age and key, so that the same rows come in the same order. With a `meaning`, also those
    nearest to it. Without a query, those changed last; a query without any word, such as `%`, finds
    nothing.
    """
    if query.strip() and not query_words(query):
        return []
    is_any = not query.strip()
    looked_for = _Wanted(tenant_id, owner_id, query, namespaces, limit, None if is_any else meaning)
    return _ranked(connection, looked_for, is_any=is_any)[0]


def rank(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    query: str,
    *,
    namespaces: Sequence[str],
    limit: int,
    meaning: Meaning | None = None,
) -> tuple[list[Memory], int]:
    """As `search`, and after what it finds the others, those changed last first; and how many there
    are in all. A preference is worth knowing also where nobody mentions it."""
    looked_for = _Wanted(tenant_id, owner_id, query, namespaces, limit, meaning)
    return _ranked(connection, looked_for, is_any=True)


@dataclass(frozen=True, slots=True)
class _Wanted:
    tenant_id: TenantId
    owner_id: UserId
    query: str
    namespaces: Sequence[str]
    limit: int
    meaning: Meaning | None


_BY_WORDS = f"""
SELECT namespace, memory_key, kind, version, content, changed_at, count(*) OVER ()
FROM celeriac.memories, to_tsquery('english', %(query)s) AS wanted
WHERE tenant_id = %(tenant_id)s AND user_id = %(owner_id)s AND {LIVE}
    AND namespace = ANY (%(namespaces)s) AND (%(is_any)s OR search @@ wanted)
ORDER BY ts_rank(search, wanted) DESC, changed_at DESC, namespace, memory_key
LIMIT %(limit)s
"""

# A memory without a vector, or with one of another embedder, has a place by its words alone.
_BY_BOTH = f"""
WITH mine AS MATERIALIZED (
    SELECT namespace, memory_key, kind, version, content, changed_at,
        search @@ wanted AS has_words, ts_rank(search, wanted) AS likeness
    FROM celeriac.memories, to_tsquery('english', %(query)s) AS wanted
    WHERE tenant_id = %(tenant_id)s AND user_id = %(owner_id)s AND {LIVE}
        AND namespace = ANY (%(namespaces)s)
), by_words AS (
    SELECT namespace, memory_key, row_number() OVER (
        ORDER BY likeness DESC, changed_at DESC, namespace, memory_key) AS place
    FROM mine WHERE has_words
), by_meaning AS (
    SELECT namespace, memory_key, row_number() OVER (
        ORDER BY {{distance}}, changed_at DESC, namespace, memory_key) AS place
    FROM mine JOIN celeriac.memory_vectors AS made USING (namespace, memory_key, version)
    WHERE made.tenant_id = %(tenant_id)s AND made.user_id = %(owner_id)s
        AND made.embedder = %(embedder)s AND cardinality(embedding) = %(dimensions)s
)
SELECT namespace, memory_key, kind, version, content, changed_at, count(*) OVER ()
FROM mine LEFT JOIN by_words USING (namespace, memory_key)
    LEFT JOIN by_meaning USING (namespace, memory_key)
WHERE %(is_any)s OR by_words.place IS NOT NULL OR by_meaning.place <= %(limit)s
ORDER BY coalesce(1.0 / ({FUSION} + by_words.place), 0)
    + coalesce(1.0 / ({FUSION} + by_meaning.place), 0) DESC,
    changed_at DESC, namespace, memory_key
LIMIT %(limit)s
"""


def _ranked(connection: Connection, wanted: _Wanted, *, is_any: bool) -> tuple[list[Memory], int]:
    parameters: dict[str, Any] = {
        "tenant_id": wanted.tenant_id,
        "owner_id": wanted.owner_id,
        "namespaces": list(wanted.namespaces),
        "query": either(query_words(wanted.query)),
        "is_any": is_any,
        "limit": wanted.limit,
    }
    statement = _BY_WORDS
    if wanted.meaning is not None:
        statement = _BY_BOTH.format(distance=memory_vectors.distance(connection))
        parameters |= {
            "embedder": wanted.meaning.embedder,
            "vector": memory_vectors.as_text(wanted.meaning.vector),
            "dimensions": len(wanted.meaning.vector),
        }
    rows: Any = connection.exec_driver_sql(statement, parameters).all()
    return [as_memory(row[:6]) for row in rows], rows[0][6] if rows else 0
