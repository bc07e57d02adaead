"""Turns in a thread: its root runs go one at a time.

Rows are locked in this order: a run, its thread, another run of the thread. Nobody waits for a
thread's row here: a client may hold it for as long as it keeps its own transaction open. What is
left undone then, the scheduler does when it is free (`idle_threads`).
"""

from sqlalchemy import Connection

from celeriac.ids import RunId
from celeriac.states import Phase
from celeriac_storage import pauses

HOLDS_THREAD = """(
    active.status IN ('queued', 'running')
    OR active.status = 'paused' AND active.phase IN ('waiting_timer', 'waiting_worker',
        'waiting_external', 'waiting_child', 'waiting_activity', 'waiting_budget')
) AND active.thread_position IS NOT NULL"""
"""Whether the run called `active` makes the thread's next one wait; a person's pause does not.
One for a budget does: it may be over in a second, and the thread's turns keep their order."""


def wake_next_of_thread(connection: Connection, tenant_id: str, thread_id: str) -> None:
    """Queue the thread's next waiting run if no run of it is active. Needs a transaction.

    The scheduler publishes it.
    """
    # A statement of its own: the next one then sees a run that `start` has inserted meanwhile.
    if not _lock(connection, tenant_id, thread_id):
        return
    pauses.wake(
        connection,
        Phase.WAITING_THREAD,
        f"""
        SELECT run_id FROM celeriac.runs
        WHERE tenant_id = %(tenant_id)s AND thread_id = %(thread_id)s
            AND status = 'paused' AND phase = 'waiting_thread'
            AND NOT EXISTS (
                SELECT FROM celeriac.runs AS active
                WHERE active.tenant_id = %(tenant_id)s AND active.thread_id = %(thread_id)s
                    AND {HOLDS_THREAD}
            )
        ORDER BY thread_position LIMIT 1
        """,
        {"tenant_id": tenant_id, "thread_id": thread_id},
    )


def wait_for_turn(connection: Connection, run_id: RunId, tenant_id: str, thread_id: str) -> bool:
    """Pause a queued run that has let others go before it, unless none of them is active; whether
    it is paused now. Needs the transaction that has just queued it.

    Somebody who holds the thread's row may be starting or waking another run: then this one is
    paused as well. That is never wrong, only up to a second slower.
    """
    if _lock(connection, tenant_id, thread_id):
        is_busy = f"""EXISTS (
            SELECT FROM celeriac.runs AS active
            WHERE active.tenant_id = %(tenant_id)s AND active.thread_id = %(thread_id)s
                AND active.run_id <> %(run_id)s AND {HOLDS_THREAD}
        )"""
    else:
        is_busy = "true"
    paused = pauses.pause(
        connection,
        Phase.WAITING_THREAD,
        # Children and hand-offs have no place in the thread's line and wait for nobody.
        f"""
        SELECT run_id FROM celeriac.runs
        WHERE run_id = %(run_id)s AND thread_position IS NOT NULL AND {is_busy}
        """,
        {"run_id": run_id, "tenant_id": tenant_id, "thread_id": thread_id},
    )
    return bool(paused)


def idle_threads(connection: Connection) -> list[tuple[str, str]]:
    """Tenant and id of threads in which a run waits and none is active, for `wake_next_of_thread`.

    The end of a run does this itself. Here is the net for what no ending could see, such as a
    cancelled run in the middle of the line. One transaction for each: two that lock many threads
    could lock each other out. In no order: those that cannot be woken just now must not keep the
    others out for ever.
    """
    rows = connection.exec_driver_sql(
        f"""
        SELECT tenant_id, thread_id FROM celeriac.runs AS waiting
        WHERE status = 'paused' AND phase = 'waiting_thread' AND NOT EXISTS (
            SELECT FROM celeriac.runs AS active
            WHERE active.tenant_id = waiting.tenant_id AND active.thread_id = waiting.thread_id
                AND {HOLDS_THREAD}
        )
        GROUP BY tenant_id, thread_id ORDER BY random() LIMIT 100
        """
    )
    return [(row[0], row[1]) for row in rows]


def _lock(connection: Connection, tenant_id: str, thread_id: str) -> bool:
    """Lock the thread's row; false if somebody else has it."""
    # NO KEY: whoever updates a run twice in one transaction makes PostgreSQL check its foreign key
    # again, by a key share lock on the thread. A plain FOR UPDATE would make him wait for us.
    locked = connection.exec_driver_sql(
        "SELECT FROM celeriac.threads WHERE tenant_id = %s AND thread_id = %s"
        " FOR NO KEY UPDATE SKIP LOCKED",
        (tenant_id, thread_id),
    ).fetchone()
    return locked is not None
