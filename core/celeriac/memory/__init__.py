"""Long-term memory: what an agent may keep about its user, and what it is shown of that again.

A model proposes (`MemoryCandidate`), a policy decides (`MemoryPolicy`), and only what was allowed
is stored (`docs/memory.md`). Nothing here reaches a server.
"""

from celeriac.memory.candidate import MemoryCandidate, MemoryKind, Origin, Source
from celeriac.memory.policy import MemoryDecision, MemoryPolicy, Reason

__all__ = [
    "MemoryCandidate",
    "MemoryDecision",
    "MemoryKind",
    "MemoryPolicy",
    "Origin",
    "Reason",
    "Source",
]
