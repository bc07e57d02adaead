"""Taking away what old runs have left, whole runs at a time (docs/retention.md).

The work is done by the database's own function, `celeriac.prune_runs` (migration 0017): it looks
again whether each run is at rest, under its locks, and never waits for one. A batch is one
transaction, so a kill leaves whole runs only.

With them go vectors of memories that no agent's embedder compares any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection

from celeriac.errors import InvalidInput
from celeriac.ids import RunId, TenantId
from celeriac.states import RunStatus
from celeriac_storage import memory_vectors
from celeriac_storage.database import Database

BATCH_RUNS = 100
SWEPT_ARTIFACTS = 1000  # of one call
SWEPT_VECTORS = 1000

ENDED = tuple(status for status in RunStatus if status.is_terminal)


@dataclass(frozen=True, slots=True)
class Policy:
    """Which runs may go: those that ended so, at least so long ago."""

    older_than_days: float
    statuses: Sequence[RunStatus] = ENDED
    tenant_id: TenantId | None = None

    @property
    def older_than_seconds(self) -> float:
        return self.older_than_days * 86400.0

    def __post_init__(self) -> None:
        if not 0 <= self.older_than_days < 36500:
            raise InvalidInput(
                f"{self.older_than_days!r} is no age in days: give a number from 0 to 36499"
            )
        for status in self.statuses:
            if not status.is_terminal:
                raise InvalidInput(
                    f"runs that are {status} are not pruned: only completed, failed and cancelled "
                    "ones are"
                )


@dataclass(slots=True)
class Place:
    """How far a pass over the runs has come; what was passed over is looked at by the next."""

    finished_at: datetime | None = None
    run_id: RunId | None = None


@dataclass(frozen=True, slots=True)
class Extent:
    """The runs that a policy is about now."""

    runs: int
    oldest: datetime | None  # ended then
    newest: datetime | None
    vectors: int  # of memories, by embedders that no agent has


@dataclass(slots=True)
class Pruned:
    """What was done so far."""

    runs: int = 0
    artifacts: int = 0  # large values that no call refers to any more
    vectors: int = 0  # of memories, by embedders that no agent has
    passed_over: int = 0  # somebody held them, or began something with them in that moment
    place: Place = field(default_factory=Place)


_OLD = """
    pruned_at IS NULL AND finished_at < clock_timestamp() - make_interval(secs => %(seconds)s)
    AND status = ANY (%(statuses)s) AND tenant_id = coalesce(%(tenant_id)s::text, tenant_id)
    AND celeriac.is_at_rest(run_id)
"""


def extent(connection: Connection, policy: Policy) -> Extent:
    """How many runs there are to prune, and from when, and how many vectors: what `prune` would
    do. Changes nothing."""
    runs, oldest, newest = connection.exec_driver_sql(
        f"SELECT count(*), min(finished_at), max(finished_at) FROM celeriac.runs WHERE {_OLD}",
        _parameters(policy),
    ).one()
    vectors = memory_vectors.count_abandoned(
        connection, older_than_seconds=policy.older_than_seconds, tenant_id=policy.tenant_id
    )
    return Extent(runs, oldest, newest, vectors)


def prune_batch(
    connection: Connection, policy: Policy, so_far: Pruned, *, batch: int = BATCH_RUNS
) -> bool:
    """Prune the next runs of this pass; whether there may be more. Needs a transaction."""
    found = connection.exec_driver_sql(
        f"""
        SELECT run_id, finished_at FROM celeriac.runs
        WHERE {_OLD} AND (%(after)s::timestamptz IS NULL
            OR (finished_at, run_id) > (%(after)s::timestamptz, %(after_run)s))
        ORDER BY finished_at, run_id LIMIT %(batch)s
        """,
        {
            **_parameters(policy),
            "after": so_far.place.finished_at,
            "after_run": so_far.place.run_id or "",
            "batch": batch,
        },
    ).all()
    if not found:
        return False
    pruned = connection.exec_driver_sql(
        "SELECT celeriac.prune_runs(%s)", ([run_id for run_id, _ in found],)
    ).scalar_one()
    so_far.runs += len(pruned)
    so_far.passed_over += len(found) - len(pruned)
    so_far.place = Place(found[-1][1], RunId(found[-1][0]))
    return len(found) == batch


def sweep_artifacts(connection: Connection, at_most: int = SWEPT_ARTIFACTS) -> int:
    """Delete large values that were of erased and pruned calls only; how many. One that was stored
    within the last hour stays until then: a step that stores it has yet to refer to it."""
    return int(
        connection.exec_driver_sql("SELECT celeriac.sweep_artifacts(%s)", (at_most,)).scalar_one()
    )


def sweep_vectors(connection: Connection, policy: Policy, at_most: int = SWEPT_VECTORS) -> int:
    """Delete vectors, made at least as long ago as the policy says, that nobody compares any more;
    how many. A memory without one is found by its words, and gets one when it is next recalled."""
    return memory_vectors.prune(
        connection,
        older_than_seconds=policy.older_than_seconds,
        tenant_id=policy.tenant_id,
        at_most=at_most,
    )


def prune(
    database: Database,
    policy: Policy,
    *,
    batch: int = BATCH_RUNS,
    progress: Callable[[Pruned], None] = lambda _: None,
) -> Pruned:
    """Prune all runs that the policy is about, a transaction for each batch; what was done."""
    so_far, is_more = Pruned(), True
    while is_more:
        with database.begin() as connection:
            is_more = prune_batch(connection, policy, so_far, batch=batch)
        progress(so_far)
    is_more = True
    while is_more:
        with database.begin() as connection:
            artifacts = sweep_artifacts(connection)
        with database.begin() as connection:
            vectors = sweep_vectors(connection, policy)
        so_far.artifacts += artifacts
        so_far.vectors += vectors
        is_more = artifacts == SWEPT_ARTIFACTS or vectors == SWEPT_VECTORS
    return so_far


def _parameters(policy: Policy) -> dict[str, object]:
    return {
        "seconds": policy.older_than_seconds,
        "statuses": [status.value for status in policy.statuses],
        "tenant_id": policy.tenant_id,
    }
