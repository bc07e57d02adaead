"""Timers: rows that say when a run goes on, and that they have fired.

A timer is set in the transaction that pauses its run, and fires in the transaction that queues it:
once, by compare-and-set, however many schedulers there are. What the run does then is decided by
the step that finds it fired.

`START` is the timer of a run that begins later. Only when its time has come does such a run take
its turn in its thread. Any other timer is named by the call that waits for it, or by the entry of a
workflow's log that it ends (`fire_entries`).

Rows are locked in this order: the timer, its run, its thread. None of them is waited for: what
somebody else has locked is for the next look.
"""

from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter

from sqlalchemy import Connection

from celeriac import reports
from celeriac.ids import RunId, TenantId, UserId
from celeriac_storage import news
from celeriac_storage.dispatch import BATCH, Due
from celeriac_storage.entry_ends import Outcome, end_entry
from celeriac_storage.threads import HOLDS_THREAD

START = "start"


@dataclass(frozen=True, slots=True)
class Timer:
    """When it is due, and whether it has fired."""

    due_at: datetime
    has_fired: bool


def set_timer(
    connection: Connection,
    run_id: RunId,
    timer_id: str,
    due_at: datetime | None = None,
    *,
    after_seconds: float | None = None,
) -> None:
    """Set the run's timer to a time, or to so many seconds from now by the database's clock. One
    that is set already stays as it is. Needs the transaction that pauses the run."""
    connection.exec_driver_sql(
        """
        INSERT INTO celeriac.timers (run_id, timer_id, due_at)
        VALUES (%(run_id)s, %(timer_id)s, coalesce(%(due_at)s::timestamptz,
            clock_timestamp() + make_interval(secs => %(after_seconds)s::float8)))
        ON CONFLICT DO NOTHING
        """,
        {
            "run_id": run_id,
            "timer_id": timer_id,
            "due_at": due_at,
            "after_seconds": after_seconds,
        },
    )


def read_timer(connection: Connection, run_id: RunId, timer_id: str) -> Timer | None:
    """The run's timer of that name, if one was set."""
    row = connection.exec_driver_sql(
        "SELECT due_at, fired_at IS NOT NULL FROM celeriac.timers"
        " WHERE run_id = %s AND timer_id = %s",
        (run_id, timer_id),
    ).fetchone()
    return None if row is None else Timer(row[0], row[1])


def fire_due(connection: Connection, limit: int = BATCH) -> list[Due]:
    """Fire the timers that are due, and queue the runs that wait for them, marked as published.
    Publish them all.

    A run that does not wait for its timer just now goes on as it is; a step in progress learns of
    it before it commits, so that none goes to sleep for a timer that has fired meanwhile.
    """
    rows = connection.exec_driver_sql(
        """
        WITH due AS (
            -- As the lock finds the run: it may have gone to sleep since this statement began.
            SELECT run_id, timer_id,
                run.status = 'paused' AND run.phase = 'waiting_timer' AS is_waiting
            FROM celeriac.timers JOIN celeriac.runs AS run USING (run_id)
            WHERE fired_at IS NULL AND timer_id <> %(start)s AND due_at <= clock_timestamp()
                AND kind <> 'workflow'
            ORDER BY due_at LIMIT %(limit)s
            FOR UPDATE OF timers, run SKIP LOCKED
        ), fired AS (
            UPDATE celeriac.timers AS timer SET fired_at = clock_timestamp() FROM due
            WHERE (timer.run_id, timer.timer_id) = (due.run_id, due.timer_id)
                AND fired_at IS NULL
            RETURNING timer.run_id, is_waiting
        ), run AS (
            UPDATE celeriac.runs AS run SET
                status = CASE WHEN is_waiting THEN 'queued' ELSE status END,
                phase = CASE WHEN is_waiting THEN resume_phase ELSE phase END,
                resume_phase = CASE WHEN is_waiting THEN NULL ELSE resume_phase END,
                wake_at = CASE WHEN is_waiting THEN NULL ELSE wake_at END,
                published_at = CASE WHEN is_waiting THEN clock_timestamp() ELSE published_at END,
                publish_count = CASE WHEN is_waiting THEN 1 ELSE publish_count END,
                request_version = request_version + (status = 'running')::int,
                last_event_seq = last_event_seq + is_waiting::int
            FROM (SELECT DISTINCT run_id, is_waiting FROM fired) AS found
            WHERE run.run_id = found.run_id AND finished_at IS NULL
            RETURNING run.run_id, step, queue, last_event_seq, is_waiting
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, last_event_seq, 'run.woken', '{"waited_for": "timer"}' FROM run
            WHERE is_waiting
        )
        SELECT run_id, step, queue FROM run WHERE is_waiting
        """,
        {"start": START, "limit": limit},
    )
    woken = [Due(*row) for row in rows]
    news.add(connection, *(due.run_id for due in woken))
    return woken


def fire_entries(connection: Connection, limit: int = BATCH) -> list[Due]:
    """Fire the timers of workflows that are due: each ends its entry. The turns that are due by
    that, marked as published; publish them all. Needs a transaction."""
    rows = connection.exec_driver_sql(
        """
        WITH due AS (
            SELECT run_id, timer_id FROM celeriac.timers JOIN celeriac.runs AS run USING (run_id)
            WHERE fired_at IS NULL AND timer_id <> %(start)s AND due_at <= clock_timestamp()
                AND kind = 'workflow'
            ORDER BY due_at LIMIT %(limit)s
            FOR UPDATE OF timers, run SKIP LOCKED
        )
        UPDATE celeriac.timers AS timer SET fired_at = clock_timestamp() FROM due
        WHERE (timer.run_id, timer.timer_id) = (due.run_id, due.timer_id)
        RETURNING timer.run_id, timer.timer_id, due_at
        """,
        {"start": START, "limit": limit},
    ).all()
    due = [
        end_entry(connection, run_id, timer_id, Outcome(), is_published=True)
        for run_id, timer_id, _ in sorted(rows, key=itemgetter(2))
    ]
    return [turn for turn in due if turn is not None]


def begin_delayed(connection: Connection, limit: int = BATCH) -> list[Due]:
    """Let the runs begin whose time has come: those that can be published, marked as that; publish
    them all. Needs a transaction.

    Each takes the next turn in its thread. One whose thread is busy waits for it, as if it had been
    started now.
    """
    locked = connection.exec_driver_sql(
        """
        SELECT timer.run_id FROM celeriac.timers AS timer
            JOIN celeriac.runs AS run USING (run_id)
            JOIN celeriac.threads AS thread USING (tenant_id, thread_id)
        WHERE fired_at IS NULL AND timer_id = %(start)s AND due_at <= clock_timestamp()
        ORDER BY due_at, run_id LIMIT %(limit)s
        FOR NO KEY UPDATE OF timer, run, thread SKIP LOCKED
        """,
        {"start": START, "limit": limit},
    )
    run_ids = [row[0] for row in locked]
    if not run_ids:
        return []
    # A statement of its own: it sees the runs that were started before the threads were locked.
    rows = connection.exec_driver_sql(
        f"""
        WITH fired AS (
            UPDATE celeriac.timers SET fired_at = clock_timestamp()
            WHERE run_id = ANY (%(run_ids)s) AND timer_id = %(start)s AND fired_at IS NULL
            RETURNING run_id, due_at
        ), beginning AS (
            SELECT run.run_id, tenant_id, thread_id,
                row_number() OVER (PARTITION BY tenant_id, thread_id ORDER BY due_at, run.run_id)
                    AS turn,
                EXISTS (
                    SELECT FROM celeriac.runs AS active
                    WHERE (active.tenant_id, active.thread_id) = (run.tenant_id, run.thread_id)
                        AND ({HOLDS_THREAD}
                            OR active.status = 'paused' AND active.phase = 'waiting_thread')
                ) AS is_busy
            FROM celeriac.runs AS run JOIN fired USING (run_id)
            WHERE status = 'paused' AND phase = 'waiting_timer'
        ), thread AS (
            UPDATE celeriac.threads AS thread SET next_position = next_position + turns.count
            FROM (SELECT tenant_id, thread_id, count(*)::int AS count FROM beginning GROUP BY 1, 2)
                AS turns
            WHERE (thread.tenant_id, thread.thread_id) = (turns.tenant_id, turns.thread_id)
            RETURNING thread.tenant_id, thread.thread_id, next_position - count AS first
        ), run AS (
            UPDATE celeriac.runs AS run SET thread_position = first + turn - 1,
                status = CASE WHEN waits THEN 'paused' ELSE 'queued' END,
                phase = CASE WHEN waits THEN 'waiting_thread' ELSE resume_phase END,
                resume_phase = CASE WHEN waits THEN resume_phase END,
                published_at = CASE WHEN waits THEN NULL ELSE clock_timestamp() END,
                publish_count = (NOT waits)::int,
                last_event_seq = last_event_seq + 1 + waits::int
            FROM (
                SELECT run_id, turn, first, is_busy OR turn > 1 AS waits
                FROM beginning JOIN thread USING (tenant_id, thread_id)
            ) AS found
            WHERE run.run_id = found.run_id
            RETURNING run.run_id, step, queue, last_event_seq, waits
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, last_event_seq - waits::int, 'run.woken',
                '{{"waited_for": "timer"}}'::jsonb
            FROM run
            UNION ALL
            SELECT run_id, last_event_seq, 'run.paused', '{{"phase": "waiting_thread"}}'::jsonb
            FROM run WHERE waits
        )
        SELECT run_id, step, queue FROM run WHERE NOT waits
        """,
        {"run_ids": run_ids, "start": START},
    )
    news.add(connection, *run_ids)
    return [Due(*row) for row in rows]


def list_waiting(
    connection: Connection, tenant_id: TenantId, user_id: UserId | None = None, limit: int = 100
) -> list[reports.Timer]:
    """The timers that runs of the tenant, or of that user, wait for, the next one first."""
    rows = connection.exec_driver_sql(
        """
        SELECT run_id, user_id, agent, timer_id, due_at
        FROM celeriac.timers JOIN celeriac.runs AS run USING (run_id)
        WHERE fired_at IS NULL AND finished_at IS NULL AND tenant_id = %(tenant_id)s
            AND user_id = coalesce(%(user_id)s::text, user_id)
        UNION ALL
        SELECT run_id, user_id, agent, NULL, wake_at FROM celeriac.runs AS run
        WHERE status = 'paused' AND phase = 'waiting_timer' AND wake_at IS NOT NULL
            AND tenant_id = %(tenant_id)s AND user_id = coalesce(%(user_id)s::text, user_id)
            AND NOT EXISTS (
                SELECT FROM celeriac.timers
                WHERE timers.run_id = run.run_id AND fired_at IS NULL
            )
        ORDER BY due_at, run_id LIMIT %(limit)s
        """,
        {"tenant_id": tenant_id, "user_id": user_id, "limit": limit},
    )
    return [
        reports.Timer(RunId(run_id), UserId(owner), agent, timer_id, due_at)
        for run_id, owner, agent, timer_id, due_at in rows
    ]
