"""Long-term memory: what an agent may keep about its user, and what it is shown of that again.

A model proposes (`MemoryCandidate`), a policy decides (`MemoryPolicy`), and only what was allowed
is stored (`docs/memory.md`). Nothing here reaches a server.
"""

from celeriac.memory.candidate import MemoryCandidate, MemoryKind, Origin, Source
from celeriac.memory.embedding import Embedder, HashingEmbedder
from celeriac.memory.policy import MemoryDecision, MemoryPolicy, Reason
from celeriac.memory.static_embedder import StaticEmbedder

__all__ = [
    "Embedder",
    "HashingEmbedder",
    "MemoryCandidate",
    "MemoryDecision",
    "MemoryKind",
    "MemoryPolicy",
    "Origin",
    "Reason",
    "Source",
    "StaticEmbedder",
]
