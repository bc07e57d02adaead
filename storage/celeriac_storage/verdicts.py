"""Finding workers that are gone, and giving their steps to others.

A missing lifeline alone is no proof: when one backend of Postgres is killed, the server restarts
and all lifelines vanish at once while every worker lives. So the query also tells whether any
session is older than the worker's last renewal, which shows that the server has run on since then.

Runs are taken back in batches, and none waits for a lock with others locked: where the end of one
may wait for its parent, it is taken back by itself. Rows are locked in this order: the run, and if
that ends it, what `requests` locks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import Connection

from celeriac.ids import RunId, WorkerId
from celeriac_storage import news
from celeriac_storage.claims import STRIKES_BEFORE_ATTENTION
from celeriac_storage.dispatch import BATCH, Due
from celeriac_storage.requests import cancel_as_asked
from celeriac_storage.workers import APPLICATION_NAME_PREFIX, IS_ALIVE

Verdict = Literal["lifeline", "lease"]

SILENCES_PER_STRIKE = 3
"""A lease that runs out says little about the step: the machine froze, or was cut off."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A worker that was not seen to be alive just now."""

    worker_id: WorkerId
    is_lifeline_missing: bool
    has_server_run_on: bool  # since the worker's last renewal: a missing lifeline then means death
    is_lease_over: bool  # counted anew from our own session, if that is younger than the lease


def suspects(connection: Connection, lease_seconds: float) -> list[Suspect]:
    """Workers believed to be alive whose lifeline is missing or whose lease is over."""
    rows = connection.exec_driver_sql(
        """
        SELECT * FROM (
            SELECT worker_id,
                lifeline_key IS NOT NULL AND NOT EXISTS (
                    SELECT FROM pg_locks
                    WHERE locktype = 'advisory' AND granted AND objsubid = 1
                        AND database = (SELECT oid FROM pg_database
                            WHERE datname = current_database())
                        AND classid = (lifeline_key >> 32)::oid
                        AND objid = (lifeline_key & 4294967295)::oid
                ) AS is_lifeline_missing,
                EXISTS (
                    SELECT FROM pg_stat_activity
                    WHERE backend_type = 'client backend' AND backend_start < renewed_at
                ) AS has_server_run_on,
                greatest(lease_until, (
                    SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()
                ) + make_interval(secs => %s)) < clock_timestamp() AS is_lease_over
            FROM celeriac.workers
            WHERE dead_at IS NULL AND stopped_at IS NULL
        ) AS seen
        WHERE is_lifeline_missing OR is_lease_over
        """,
        (lease_seconds,),
    )
    return [Suspect(WorkerId(row[0]), row[1], row[2], row[3]) for row in rows]


def declare_dead(connection: Connection, worker_id: WorkerId, verdict: Verdict) -> datetime | None:
    """Declare the worker dead and end its sessions, so that it holds no lock and commits nothing.

    Returns the moment of the verdict: what was published before it may have died with the worker.
    None if it was declared dead, stopped, or is being looked at by another scheduler. Its steps are
    then taken by `recover`.
    """
    row = connection.exec_driver_sql(
        """
        UPDATE celeriac.workers SET dead_at = clock_timestamp(), verdict = %(verdict)s
        WHERE worker_id = (
            SELECT worker_id FROM celeriac.workers
            WHERE worker_id = %(worker_id)s AND dead_at IS NULL AND stopped_at IS NULL
            FOR UPDATE SKIP LOCKED
        )
        RETURNING dead_at
        """,
        {"verdict": verdict, "worker_id": worker_id},
    ).fetchone()
    if row is None:
        return None
    connection.exec_driver_sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = %s AND pid <> pg_backend_pid()",
        (APPLICATION_NAME_PREFIX + worker_id,),
    )
    moment: datetime = row[0]
    return moment


def recover(connection: Connection) -> list[Due]:
    """Queue the steps that dead or departed workers held, marked as published. Publish them all.

    A death that the lifeline shows is a strike against the run: it may be the killer. So is the
    death of a worker without a lifeline, which nothing else could show, and every third one that
    only the lease shows: a step that stops its process for longer must come to an end as well.
    After `STRIKES_BEFORE_ATTENTION` of them the run needs attention instead, or is over if it was
    asked to end: it comes to no step that could heed that.

    Not those whose end would wait for their parents (`ending_children`).
    """
    return _take_back(connection, f"{_OF_LOST_WORKERS} AND NOT {_IS_ENDING_CHILD}")


def take_back_overdue(connection: Connection) -> list[Due]:
    """Queue the steps that hang in a live worker past their deadline, as `recover` does."""
    return _take_back(connection, f"{_OVERDUE} AND NOT {_IS_ENDING_CHILD}")


def ending_children(connection: Connection) -> list[RunId]:
    """The runs that `recover` and `take_back_overdue` leave to `take_back`. Locks nothing."""
    rows = connection.exec_driver_sql(
        f"""
        SELECT run_id FROM ({_OF_LOST_WORKERS} UNION {_OVERDUE}) AS lost
        JOIN celeriac.runs USING (run_id) WHERE {_IS_ENDING_CHILD} LIMIT %(batch)s
        """,
        {"silences": SILENCES_PER_STRIKE, "batch": BATCH},
    )
    return [RunId(row[0]) for row in rows]


def take_back(connection: Connection, run_id: RunId) -> list[Due]:
    """Queue the step of such a run, as `recover` does. Needs a transaction in which nothing else is
    locked: a run that ends waits for its parent, and whoever holds that may wait for its own."""
    return [
        due
        for lost in (_OF_LOST_WORKERS, _OVERDUE)
        for due in _take_back(connection, f"{lost} AND run_id = %(run_id)s", run_id)
    ]


_OF_LOST_WORKERS = """
SELECT run_id, worker_id, coalesce(verdict, 'stopped') AS reason,
    (dead_at IS NOT NULL AND (verdict = 'lifeline' OR lifeline_key IS NULL
        OR (deaths + 1) %% %(silences)s = 0))::int AS strike
FROM celeriac.runs AS held JOIN celeriac.workers USING (worker_id)
WHERE status = 'running' AND (dead_at IS NOT NULL OR stopped_at IS NOT NULL)
"""

_OVERDUE = """
SELECT run_id, worker_id, 'deadline' AS reason, 1 AS strike
FROM celeriac.runs AS held
WHERE status = 'running' AND step_deadline < clock_timestamp()
"""

_IS_ENDING_CHILD = "(cancel_requested_at IS NOT NULL AND parent_run_id IS NOT NULL)"
"""Whether a last strike would end the run, and tell its parent."""


def _take_back(connection: Connection, lost: str, run_id: RunId | None = None) -> list[Due]:
    rows = connection.exec_driver_sql(
        f"""
        WITH lost AS ({lost} LIMIT %(batch)s FOR UPDATE OF held SKIP LOCKED), run AS (
            UPDATE celeriac.runs AS run SET
                status = CASE WHEN strikes + strike < %(limit)s THEN 'queued'
                    ELSE 'needs_attention' END,
                error = CASE WHEN strikes + strike < %(limit)s THEN error
                    ELSE jsonb_build_object('kind', 'poison', 'message', format(
                        'step %%s was taken from a worker %%s times (last: %%s, %%s); nobody will '
                        'claim it again until a person has looked', step, strikes + strike,
                        lost.worker_id, reason)) END,
                strikes = strikes + strike,
                deaths = deaths + CASE WHEN reason IN ('lifeline', 'lease') THEN 1 ELSE 0 END,
                claim_token = NULL, step_deadline = NULL,
                published_at = clock_timestamp(), publish_count = 1,
                last_event_seq = last_event_seq + 1
            FROM lost WHERE run.run_id = lost.run_id AND run.status = 'running'
            RETURNING run.run_id, step, queue, status, epoch, last_event_seq, lost.worker_id,
                reason, error
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, last_event_seq,
                CASE status WHEN 'queued' THEN 'run.recovered' ELSE 'run.needs_attention' END,
                jsonb_strip_nulls(jsonb_build_object('from_checkpoint', nullif(step - 1, -1),
                    'step', step, 'epoch', epoch, 'worker_id', worker_id, 'reason', reason,
                    'error', CASE WHEN status <> 'queued' THEN error END))
            FROM run
        )
        SELECT run_id, step, queue, status = 'queued' FROM run
        """,
        {
            "limit": STRIKES_BEFORE_ATTENTION,
            "batch": BATCH,
            "silences": SILENCES_PER_STRIKE,
            "run_id": run_id,
        },
    ).all()
    news.add(connection, *(RunId(row[0]) for row in rows))
    cancel_as_asked(connection, [RunId(row[0]) for row in rows if not row[3]])
    return [Due(*row[:3]) for row in rows if row[3]]


def lead(connection: Connection, role: str, holder: str, seconds: float) -> bool:
    """Take or renew a term of leadership. It only saves the others work: everything a leader does
    is compare-and-set, so a frozen one that comes back does no harm."""
    row = connection.exec_driver_sql(
        """
        INSERT INTO celeriac.leaders AS leader (role, holder, held_until)
        VALUES (%(role)s, %(holder)s, clock_timestamp() + make_interval(secs => %(seconds)s))
        ON CONFLICT (role) DO UPDATE SET holder = excluded.holder, held_until = excluded.held_until
            WHERE leader.holder = excluded.holder OR leader.held_until < clock_timestamp()
        RETURNING holder
        """,
        {"role": role, "holder": holder, "seconds": seconds},
    ).fetchone()
    return row is not None


def live_agents(connection: Connection) -> Sequence[str]:
    """The agents that at least one live worker has."""
    rows = connection.exec_driver_sql(
        f"SELECT DISTINCT unnest(agents) FROM celeriac.workers WHERE {IS_ALIVE} ORDER BY 1"
    )
    return [row[0] for row in rows]
