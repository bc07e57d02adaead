"""Vectors for recalling: made when a user's memories are looked for, in a few batches at most.

Neither a transaction nor an active place is held while they are made, since an embedder may be a
server elsewhere. If the process dies before they are stored, whoever recalls next makes them. What
has none yet, and everything if the embedder fails, is found by its words.
"""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache

from celeriac.errors import EmbedderFailed, InvalidAgent
from celeriac.ids import TenantId, UserId
from celeriac.memory.embedding import Embedder, unit_vectors
from celeriac.testpoints import reach
from celeriac_storage import memory_vectors
from celeriac_storage.ranking import Meaning
from celeriac_storage.tenancy import Transactions

logger = logging.getLogger(__name__)

MOST_EMBEDDED = 128
"""Memories of one recall. The rest is for the next one, or a new embedder made a step take long."""


@cache
def configured(place: str | None) -> Embedder | None:
    """The embedder of `CELERIAC_EMBEDDER`, for processes that have no agents. It is imported here,
    at the first search, since few processes ever search; None, with a warning in the log, if it
    cannot be."""
    if place is None:
        return None
    from celeriac.registry import load_embedder

    try:
        return load_embedder(place)
    except InvalidAgent as error:
        logger.warning("memories are found by their words: %s", error)
        return None


def meaning_of(
    database: Transactions,
    active: AbstractContextManager[object],
    tenant_id: TenantId,
    owner_id: UserId,
    embedder: Embedder | None,
    query: str,
    *,
    namespaces: Sequence[str] | None,
    step: int = 0,
) -> Meaning | None:
    """What `query` means, once the owner's memories in these namespaces, or in all, have their
    vectors; None without an embedder, for an empty query, and if the embedder fails. `active` is
    held to use the database, for `step` of a run if it is for one.
    """
    if embedder is None or not query.strip():
        return None
    with active, database.begin() as connection:
        lacking = memory_vectors.lacking(
            connection,
            tenant_id,
            owner_id,
            embedder.name,
            namespaces=namespaces,
            limit=MOST_EMBEDDED,
        )
    try:
        vectors = unit_vectors(embedder, [query, *(each.text for each in lacking)])
    except EmbedderFailed as failed:
        logger.warning("memories of %s are found by their words: %s", owner_id, failed)
        return None
    reach("recall.after_embedding", step)
    if lacking:
        made = list(zip(lacking, vectors[1:], strict=True))
        with active, database.begin() as connection:
            memory_vectors.keep(connection, tenant_id, owner_id, embedder.name, made)
    return Meaning(embedder.name, vectors[0])
