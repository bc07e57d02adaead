"""Worker rows: who is alive, by lifeline (an advisory lock held for life) and by lease."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import RunId, TenantId, WorkerId, new_worker_id
from celeriac.reports import Worker
from celeriac.states import Phase
from celeriac_storage import pauses

APPLICATION_NAME_PREFIX = "celeriac:"
DEPARTED_WORKERS_SHOWN = 100


def application_name(worker_id: WorkerId) -> str:
    """What all sessions of a worker call themselves, so that a verdict can end exactly those."""
    return APPLICATION_NAME_PREFIX + worker_id


def lifeline_key(worker_id: WorkerId) -> int:
    """The advisory lock of a worker: 63 bits of its id's hash."""
    return int.from_bytes(hashlib.sha256(worker_id.encode()).digest()[:8]) >> 1


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a worker tells of itself when it registers."""

    worker_id: WorkerId
    hostname: str
    pid: int
    pool: str
    agents: Sequence[str]
    queues: Sequence[str]
    predecessor: WorkerId | None = None  # what the same process was called before

    def successor(self) -> "WorkerInfo":
        """The same process under a new id."""
        return replace(self, worker_id=new_worker_id(), predecessor=self.worker_id)


def register(
    connection: Connection, worker: WorkerInfo, *, lease_seconds: float, has_lifeline: bool
) -> None:
    """Insert the worker, and queue the runs that waited for a worker with its agents.

    Needs a transaction. The lifeline's lock must be held already: a worker that the scheduler can
    see without it would be declared dead.
    """
    connection.exec_driver_sql(
        """
        INSERT INTO celeriac.workers (worker_id, hostname, pid, pool, agents, queues, lifeline_key,
            lifeline_since, lease_until, predecessor)
        VALUES (%(worker_id)s, %(hostname)s, %(pid)s, %(pool)s, %(agents)s, %(queues)s,
            %(lifeline_key)s::bigint, CASE WHEN %(lifeline_key)s::bigint IS NOT NULL THEN now() END,
            now() + make_interval(secs => %(lease_seconds)s), %(predecessor)s)
        """,
        {
            "worker_id": worker.worker_id,
            "hostname": worker.hostname,
            "pid": worker.pid,
            "pool": worker.pool,
            "agents": list(worker.agents),
            "queues": list(worker.queues),
            "lifeline_key": lifeline_key(worker.worker_id) if has_lifeline else None,
            "lease_seconds": lease_seconds,
            "predecessor": worker.predecessor,
        },
    )
    wake_waiting(connection)


IS_ALIVE = "(dead_at IS NULL AND stopped_at IS NULL AND lease_until > clock_timestamp())"
"""Whether a worker's row says that it lives."""

CAN_TAKE_RUN = f"(run.agent = ANY (agents) AND run.queue = ANY (queues) AND {IS_ALIVE})"
"""Whether a worker can take the run called `run`: it lives, with its agent and its queue."""

HAS_LIVE_WORKER = f"EXISTS (SELECT FROM celeriac.workers WHERE {CAN_TAKE_RUN})"
"""Whether the run called `run` can be taken by somebody."""


def has_live_worker(connection: Connection, agent: str, queue: str) -> bool:
    """Whether some worker believed to be alive has the agent and serves the queue."""
    row = connection.exec_driver_sql(
        "SELECT FROM celeriac.workers WHERE %s = ANY (agents) AND %s = ANY (queues)"
        f" AND {IS_ALIVE} LIMIT 1",
        (agent, queue),
    ).fetchone()
    return row is not None


def wake_waiting(connection: Connection) -> int:
    """Queue the runs that wait for a worker and now have one; how many there were."""
    woken = pauses.wake(
        connection,
        Phase.WAITING_WORKER,
        f"""
        SELECT run_id FROM celeriac.runs AS run
        WHERE status = 'paused' AND phase = 'waiting_worker' AND {HAS_LIVE_WORKER}
        ORDER BY created_at LIMIT 5000
        FOR UPDATE SKIP LOCKED
        """,
        {},
    )
    return len(woken)


def renew(
    connection: Connection, worker_id: WorkerId, *, lease_seconds: float, has_lifeline: bool
) -> bool:
    """Renew the lease by the database's clock, and tell whether the lifeline's lock is held: a
    worker without it is judged by its lease alone. False if the worker was declared dead meanwhile:
    it must not go on under this id."""
    row = connection.exec_driver_sql(
        """
        UPDATE celeriac.workers
        SET renewed_at = now(), lease_until = now() + make_interval(secs => %(lease_seconds)s),
            lifeline_key = %(lifeline_key)s::bigint,
            lifeline_since = CASE WHEN %(lifeline_key)s::bigint IS NOT NULL
                THEN coalesce(lifeline_since, now()) END
        WHERE worker_id = %(worker_id)s AND dead_at IS NULL AND stopped_at IS NULL
        RETURNING worker_id
        """,
        {
            "worker_id": worker_id,
            "lease_seconds": lease_seconds,
            "lifeline_key": lifeline_key(worker_id) if has_lifeline else None,
        },
    ).fetchone()
    return row is not None


def stop(connection: Connection, worker_id: WorkerId) -> None:
    """Say goodbye. What the worker still holds, the scheduler gives to others at once."""
    connection.exec_driver_sql(
        "UPDATE celeriac.workers SET stopped_at = now()"
        " WHERE worker_id = %s AND dead_at IS NULL AND stopped_at IS NULL",
        (worker_id,),
    )


def list_workers(connection: Connection, tenant_id: TenantId | None = None) -> list[Worker]:
    """Workers that live, and the ones that left last, each with the runs it holds, those of that
    tenant if one is given; newest first."""
    rows: Sequence[Any] = connection.exec_driver_sql(
        f"""
        SELECT worker_id, hostname, pid, {IS_ALIVE} AS alive, ARRAY(
            SELECT run_id FROM celeriac.runs
            WHERE runs.worker_id = workers.worker_id AND status = 'running'
                AND tenant_id = coalesce(%s::text, tenant_id)
            ORDER BY run_id
        )
        FROM celeriac.workers
        WHERE {IS_ALIVE} OR worker_id IN (
            SELECT worker_id FROM celeriac.workers WHERE NOT {IS_ALIVE}
            ORDER BY started_at DESC LIMIT %s
        )
        ORDER BY alive DESC, started_at DESC
        """,
        (tenant_id, DEPARTED_WORKERS_SHOWN),
    ).fetchall()
    return [
        Worker(WorkerId(worker_id), hostname, pid, alive, [RunId(run) for run in running])
        for worker_id, hostname, pid, alive, running in rows
    ]
