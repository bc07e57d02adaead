"""Moving runs between `queued` and the pauses that nobody has to decide about."""

from sqlalchemy import Connection

from celeriac_storage.dispatch import BATCH, Due
from celeriac_storage.steps import HOLDS_THREAD
from celeriac_storage.workers import HAS_LIVE_WORKER


def take_due_timers(connection: Connection) -> list[Due]:
    """Queue the runs whose timer is over, marked as published. Publish them all."""
    rows = connection.exec_driver_sql(
        """
        WITH woken AS (
            UPDATE celeriac.runs SET status = 'queued', phase = resume_phase, resume_phase = NULL,
                wake_at = NULL, published_at = clock_timestamp(), publish_count = 1,
                last_event_seq = last_event_seq + 1
            WHERE run_id IN (
                SELECT run_id FROM celeriac.runs
                WHERE status = 'paused' AND phase = 'waiting_timer' AND wake_at <= clock_timestamp()
                ORDER BY wake_at LIMIT %s
                FOR UPDATE SKIP LOCKED
            )
            RETURNING run_id, step, queue, last_event_seq
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, last_event_seq, 'run.woken', '{"waited_for": "timer"}' FROM woken
        )
        SELECT run_id, step, queue FROM woken
        """,
        (BATCH,),
    )
    return [Due(*row) for row in rows]


def park_without_worker(connection: Connection) -> int:
    """Pause the queued runs that no live worker could take, so that `show` says so.

    Only those that have been queued for two seconds: a deploy replaces workers one after another.
    """
    return connection.exec_driver_sql(
        f"""
        WITH parked AS (
            UPDATE celeriac.runs SET status = 'paused', resume_phase = phase,
                phase = 'waiting_worker', published_at = NULL, publish_count = 0,
                last_event_seq = last_event_seq + 1
            WHERE run_id IN (
                SELECT run_id FROM celeriac.runs AS run
                WHERE status = 'queued' AND NOT {HAS_LIVE_WORKER}
                    AND coalesce(published_at, created_at) < clock_timestamp() - interval '2 s'
                LIMIT %s
                FOR UPDATE SKIP LOCKED
            )
            RETURNING run_id, last_event_seq
        )
        INSERT INTO celeriac.events (run_id, seq, type, data)
        SELECT run_id, last_event_seq, 'run.paused', '{{"phase": "waiting_worker"}}' FROM parked
        """,
        (BATCH,),
    ).rowcount


def idle_threads(connection: Connection) -> list[tuple[str, str]]:
    """Tenant and id of threads in which a run waits and none is active, for `wake_next_of_thread`.

    The end of a run does this itself. Here is the net for what no ending could see, such as a
    cancelled run in the middle of the line. One transaction for each: two that lock many threads
    could lock each other out.
    """
    rows = connection.exec_driver_sql(
        f"""
        SELECT DISTINCT tenant_id, thread_id FROM celeriac.runs AS waiting
        WHERE status = 'paused' AND phase = 'waiting_thread' AND NOT EXISTS (
            SELECT FROM celeriac.runs AS active
            WHERE active.tenant_id = waiting.tenant_id AND active.thread_id = waiting.thread_id
                AND {HOLDS_THREAD}
        )
        LIMIT 100
        """
    )
    return [(row[0], row[1]) for row in rows]
