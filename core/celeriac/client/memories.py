"""What people do with memories: look at them, put one in, have it forgotten, export all."""

from dataclasses import dataclass

from sqlalchemy import Connection

from celeriac.client.operations import Operation
from celeriac.codec import JsonValue
from celeriac.ids import TenantId, UserId
from celeriac.memory.candidate import MemoryCandidate, Origin, Source
from celeriac.memory.policy import MemoryPolicy
from celeriac.reports import MemoryExport, Remembered
from celeriac_storage import memories, remembering

EXPORTED_DECISIONS = 10_000
"""The latest ones, in one export."""


@dataclass(frozen=True, slots=True)
class Remember(Operation[Remembered]):
    """Have the default policy decide about what a person puts in for the owner, and keep it."""

    tenant_id: TenantId
    owner_id: UserId
    namespace: str
    key: str
    value: JsonValue
    kind: str
    by: UserId
    replaces_version: int | None = None
    expires_days: float | None = None

    def act(self, connection: Connection) -> Remembered:
        candidate = MemoryCandidate(
            owner_id=self.owner_id,
            key=self.key,
            value=self.value,
            kind=self.kind,
            explicit_user_request=True,
            namespace=self.namespace,
            expires_days=self.expires_days,
            source=Source(Origin.PERSON),
        )
        # Whoever may put it in may name the place: an agent's own policy says what it recalls.
        policy = MemoryPolicy(namespaces=[self.namespace])
        remembering.know_owner(connection, self.tenant_id, self.owner_id)
        done = remembering.remember(
            connection,
            self.tenant_id,
            candidate,
            policy,
            proposed_by=self.by,
            replaces_version=self.replaces_version,
        )
        decision = done.decision
        return Remembered(
            done.decision_id, decision.store, decision.reason, decision.why, done.version
        )


@dataclass(frozen=True, slots=True)
class Forget(Operation[None]):
    """Delete what is remembered under a key. Raises `UnknownMemory` if there is nothing."""

    tenant_id: TenantId
    owner_id: UserId
    namespace: str
    key: str
    by: UserId

    def act(self, connection: Connection) -> None:
        if not memories.forget(
            connection, self.tenant_id, self.owner_id, self.namespace, self.key, by=self.by
        ):
            raise memories.unknown_memory(self.owner_id, self.namespace, self.key)


def export(connection: Connection, tenant_id: TenantId, owner_id: UserId) -> MemoryExport:
    """All that is remembered of the user, with what was decided, the latest first."""
    return MemoryExport(
        owner_id,
        memories.list_memories(connection, tenant_id, owner_id, limit=memories.MOST_EXPORTED),
        memories.list_decisions(connection, tenant_id, owner_id, limit=EXPORTED_DECISIONS),
    )
