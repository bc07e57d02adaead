"""Which of a user's memories have to do with a question: by their words, and by meaning as well
where there are vectors. Always of one owner.

The two orders are put together by the places that a memory has in each, not by scores, which cannot
be compared: reciprocal rank fusion, after Cormack, Clarke and Büttcher (SIGIR 2009).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac import reports
from celeriac.ids import TenantId, UserId
from celeriac.memory.candidate import MemoryKind
from celeriac.memory.embedding import Vector
from celeriac.memory.recall import Memory, query_words
from celeriac_storage import memories, memory_vectors
from celeriac_storage.memories import IN_NAMESPACES, LIVE, as_memory, either

FUSION = 60
"""How little the first places count beyond those after them; the value of that paper."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What is looked for, as a vector of length 1, and by whom it was made."""

    embedder: str
    vector: Vector


def ways(meaning: Meaning | None) -> list[str]:
    """By what is searched, for whoever reads the result."""
    return ["words"] if meaning is None else ["words", meaning.embedder]


def ways_of_listing(query: str) -> list[str]:
    """The same of `memories.list_memories`, which lists everything if there is no query."""
    return ways(None) if query.strip() else []


def search(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    query: str,
    *,
    namespaces: Sequence[str] | None,
    kind: MemoryKind | None = None,
    limit: int,
    meaning: Meaning | None = None,
) -> list[Memory]:
    """The owner's memories that share a word with `query`, the best first; those that rank alike by
    their age and key, so that the same rows come in the same order. With a `meaning`, also those
    nearest to it. Without a query, those changed last; a query without any word, such as `%`, finds
    nothing. In these namespaces or in all, of that kind or of any.
    """
    if query.strip() and not query_words(query):
        return []
    is_any = not query.strip()
    looked_for = _Wanted(
        tenant_id, owner_id, query, namespaces, limit, None if is_any else meaning, kind
    )
    return _ranked(connection, looked_for, is_any=is_any)[0]


def search_with_sources(
    connection: Connection,
    tenant_id: TenantId,
    owner_id: UserId,
    query: str,
    *,
    namespaces: Sequence[str] | None,
    kind: MemoryKind | None,
    limit: int,
    meaning: Meaning,
) -> list[reports.Memory]:
    """What `search` finds, in its order, with source and decision."""
    found = search(
        connection, tenant_id, owner_id, query,
        namespaces=namespaces, kind=kind, limit=limit, meaning=meaning,
    )  # fmt: skip
    told = memories.read_all(
        connection, tenant_id, owner_id, [(each.namespace, each.key) for each in found]
    )
    by_place = {(each.namespace, each.key): each for each in told}
    # One that somebody forgets in between is not there.
    return [
        by_place[each.namespace, each.key]
        for each in found
        if (each.namespace, each.key) in by_place
    ]


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
    namespaces: Sequence[str] | None
    limit: int
    meaning: Meaning | None
    kind: MemoryKind | None = None


_CHOSEN = f"{IN_NAMESPACES} AND kind = coalesce(%(kind)s::text, kind)"

_BY_WORDS = f"""
SELECT namespace, memory_key, kind, version, content, changed_at, count(*) OVER ()
FROM celeriac.memories, to_tsquery('english', %(query)s) AS wanted
WHERE tenant_id = %(tenant_id)s AND user_id = %(owner_id)s AND {LIVE}
    AND {_CHOSEN} AND (%(is_any)s OR search @@ wanted)
ORDER BY ts_rank(search, wanted) DESC, changed_at DESC, namespace, memory_key
LIMIT %(limit)s
"""

# A memory without a vector, or with one of another embedder, has a place by its words alone. In one
# pass: joining the two orders took 300 ms for 1,000 memories, since nobody knows how long they are.
_BY_BOTH = f"""
SELECT namespace, memory_key, kind, version, content, changed_at, count(*) OVER ()
FROM (
    SELECT *,
        CASE WHEN has_words THEN row_number() OVER (PARTITION BY has_words
            ORDER BY likeness DESC, changed_at DESC, namespace, memory_key) END AS word_place,
        CASE WHEN distance IS NOT NULL THEN row_number() OVER (
            ORDER BY distance, changed_at DESC, namespace, memory_key) END AS meaning_place
    FROM (
        SELECT namespace, memory_key, kind, version, content, changed_at,
            search @@ wanted AS has_words, ts_rank(search, wanted) AS likeness,
            {{distance}} AS distance
        FROM to_tsquery('english', %(query)s) AS wanted CROSS JOIN celeriac.memories AS memory
        LEFT JOIN (
            SELECT tenant_id, user_id, namespace, memory_key, version, embedding
            FROM celeriac.memory_vectors
            WHERE embedder = %(embedder)s AND cardinality(embedding) = %(dimensions)s
        ) AS made USING (tenant_id, user_id, namespace, memory_key, version)
        WHERE tenant_id = %(tenant_id)s AND user_id = %(owner_id)s AND {LIVE}
            AND {_CHOSEN}
        OFFSET 0  -- or each distance is computed twice
    ) AS mine
) AS placed
WHERE %(is_any)s OR word_place IS NOT NULL OR meaning_place <= %(limit)s
ORDER BY coalesce(1.0 / ({FUSION} + word_place), 0)
    + coalesce(1.0 / ({FUSION} + meaning_place), 0) DESC, changed_at DESC, namespace, memory_key
LIMIT %(limit)s
"""


def _ranked(connection: Connection, wanted: _Wanted, *, is_any: bool) -> tuple[list[Memory], int]:
    parameters: dict[str, Any] = {
        "tenant_id": wanted.tenant_id,
        "owner_id": wanted.owner_id,
        "namespaces": None if wanted.namespaces is None else list(wanted.namespaces),
        "kind": wanted.kind,
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
