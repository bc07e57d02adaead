"""What a step's model call is shown of its user's memories: chosen once, before the call.

A worker that dies in the call leaves this row, and whoever makes the step again shows the same.
Only what was forgotten, has expired or was changed meanwhile is left out then: nothing brings it
back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.memory.policy import MemoryPolicy
from celeriac.memory.recall import Memory, select
from celeriac_storage import memories
from celeriac_storage.claims import Claim
from celeriac_storage.ranking import Meaning, rank, ways

MOST_LOOKED_AT = 50
"""Of one step: what ranks below is counted and not listed."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """The memories that a model call is shown."""

    memories: Sequence[Memory]
    gone: Sequence[dict[str, JsonValue]]  # chosen for the step, and not there any more

    def to_json(self) -> dict[str, JsonValue]:
        """Its part of the model call's `selection`; what was dropped is in `recalls`."""
        return {
            "included": [memory.address for memory in self.memories],
            "gone": list(self.gone),
        }


def recall(
    connection: Connection,
    claim: Claim,
    policy: MemoryPolicy,
    query: str,
    meaning: Meaning | None = None,
) -> Recalled:
    """Choose for the claimed step, unless that was done before. Needs a transaction."""
    chosen = _chosen(connection, claim)
    if chosen is None:
        found, count = rank(
            connection,
            claim.tenant_id,
            claim.user_id,
            query,
            namespaces=policy.namespaces,
            limit=MOST_LOOKED_AT,
            meaning=meaning,
        )
        selection = select(found, policy.recall_tokens, policy.recall_most, count).to_json()
        selection["ranked_by"] = [*ways(meaning)]
        connection.exec_driver_sql(
            "INSERT INTO celeriac.recalls (run_id, step, selection) VALUES (%s, %s, %s::jsonb)"
            " ON CONFLICT DO NOTHING",
            (claim.run_id, claim.step, dumps(selection)),
        )
        # A worker that was thought dead may have been first.
        chosen = _chosen(connection, claim)
        assert chosen is not None
    versions = [(each["namespace"], each["key"], each["version"]) for each in chosen]
    there = memories.still_there(connection, claim.tenant_id, claim.user_id, versions)
    return Recalled(
        [there[each[:2]] for each in versions if each[:2] in there],
        [
            {"namespace": namespace, "key": key, "version": version}
            for namespace, key, version in versions
            if (namespace, key) not in there
        ],
    )


def _chosen(connection: Connection, claim: Claim) -> list[Any] | None:
    row = connection.exec_driver_sql(
        "SELECT selection -> 'included' FROM celeriac.recalls WHERE run_id = %s AND step = %s",
        (claim.run_id, claim.step),
    ).fetchone()
    return None if row is None else list(row[0])
