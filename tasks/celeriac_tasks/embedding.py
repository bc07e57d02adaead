"""Vectors for recalling: made when a user's memories are looked for, in a few batches at most.

Neither a transaction nor an active place is held while they are made, since an embedder may be a
server elsewhere. If the process dies before they are stored, whoever recalls next makes them. What
has none yet, and everything if the embedder fails, is found by its words.
"""

import logging
from contextlib import AbstractContextManager

from celeriac.errors import EmbedderFailed
from celeriac.memory.embedding import unit_vectors
from celeriac.memory.policy import MemoryPolicy
from celeriac.testpoints import reach
from celeriac_storage import memory_vectors
from celeriac_storage.claims import Claim
from celeriac_storage.database import Database
from celeriac_storage.ranking import Meaning

logger = logging.getLogger(__name__)

MOST_EMBEDDED = 128
"""Memories of one recall. The rest is for the next one, or a new embedder made a step take long."""


def meaning_of(
    database: Database,
    active: AbstractContextManager[object],
    claim: Claim,
    policy: MemoryPolicy,
    query: str,
) -> Meaning | None:
    """What `query` means, once the user's memories have their vectors; None for a policy without an
    embedder, for an empty query, and if the embedder fails. `active` is held to use the database.
    """
    embedder = policy.embedder
    if embedder is None or not query.strip():
        return None
    with active, database.connect() as connection:
        lacking = memory_vectors.lacking(
            connection,
            claim.tenant_id,
            claim.user_id,
            embedder.name,
            namespaces=policy.namespaces,
            limit=MOST_EMBEDDED,
        )
    try:
        vectors = unit_vectors(embedder, [query, *(each.text for each in lacking)])
    except EmbedderFailed as failed:
        logger.warning("run %s: memories are found by their words: %s", claim.run_id, failed)
        return None
    reach("recall.after_embedding", claim.step)
    if lacking:
        made = list(zip(lacking, vectors[1:], strict=True))
        with active, database.begin() as connection:
            memory_vectors.keep(connection, claim.tenant_id, claim.user_id, embedder.name, made)
    return Meaning(embedder.name, vectors[0])
