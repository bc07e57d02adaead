"""What there is to see at a glance: how many runs stand where, and which workers have died."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import TenantId, WorkerId
from celeriac.states import RunStatus
from celeriac_storage.workers import IS_ALIVE

DEATHS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Death:
    """A worker that was declared dead: the runs it held were taken over by others."""

    worker_id: WorkerId
    hostname: str
    pid: int
    at: datetime
    verdict: str  # `lifeline` or `lease`: how it was noticed


@dataclass(frozen=True, slots=True)
class Overview:
    runs: Mapping[RunStatus, int]  # statuses without a run are left out
    deaths: Sequence[Death]  # the latest first, a few


def read_overview(connection: Connection) -> Overview:
    """Counts all runs, so ask it now and then."""
    runs: Any = connection.exec_driver_sql("SELECT status, count(*) FROM celeriac.runs GROUP BY 1")
    return Overview(
        {RunStatus(status): count for status, count in runs},
        read_deaths(connection, DEATHS_SHOWN),
    )


def read_deaths(connection: Connection, limit: int = 100) -> list[Death]:
    """The latest first."""
    deaths: Sequence[Any] = connection.exec_driver_sql(
        "SELECT worker_id, hostname, pid, dead_at, verdict FROM celeriac.workers"
        " WHERE dead_at IS NOT NULL ORDER BY dead_at DESC LIMIT %s",
        (limit,),
    ).fetchall()
    return [Death(WorkerId(row[0]), *row[1:]) for row in deaths]


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits in a queue, and who serves it."""

    name: str
    queued: int
    running: int
    oldest_queued_at: datetime | None
    workers: int  # that live and serve it


def read_queues(connection: Connection, tenant_id: TenantId) -> list[Queue]:
    """Every queue that a live worker serves or that a run of the tenant waits in, by name, with
    the tenant's runs."""
    rows = connection.exec_driver_sql(
        f"""
        WITH served AS (
            SELECT queue, count(*) AS workers FROM celeriac.workers, unnest(queues) AS queue
            WHERE {IS_ALIVE} GROUP BY queue
        ), held AS (
            SELECT queue, count(*) FILTER (WHERE status = 'queued') AS queued,
                count(*) FILTER (WHERE status = 'running') AS running,
                min(coalesce(published_at, created_at)) FILTER (WHERE status = 'queued') AS oldest
            FROM celeriac.runs WHERE status IN ('queued', 'running') AND tenant_id = %s
            GROUP BY queue
        )
        SELECT queue, coalesce(queued, 0), coalesce(running, 0), oldest, coalesce(workers, 0)
        FROM served FULL JOIN held USING (queue) ORDER BY queue
        """,
        (tenant_id,),
    )
    return [Queue(*row) for row in rows]
