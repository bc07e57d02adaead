"""Pauses for a timer, and for a worker, which `workers.wake_waiting` ends."""

from sqlalchemy import Connection

from celeriac.states import Phase
from celeriac_storage import pauses
from celeriac_storage.dispatch import BATCH, Due
from celeriac_storage.requests import cancel_as_asked
from celeriac_storage.workers import HAS_LIVE_WORKER

_LEFT = f"""
SELECT run_id FROM celeriac.runs AS run
WHERE status = 'queued' AND NOT {HAS_LIVE_WORKER}
    AND coalesce(published_at, created_at) < clock_timestamp() - interval '2 s'
"""


def take_due_timers(connection: Connection) -> list[Due]:
    """Queue the runs whose timer is over, marked as published. Publish them all."""
    return pauses.wake(
        connection,
        Phase.WAITING_TIMER,
        """
        SELECT run_id FROM celeriac.runs
        WHERE status = 'paused' AND phase = 'waiting_timer' AND wake_at <= clock_timestamp()
        ORDER BY wake_at LIMIT %(batch)s
        FOR UPDATE SKIP LOCKED
        """,
        {"batch": BATCH},
        is_published=True,
    )


def park_without_worker(connection: Connection) -> int:
    """Pause the queued runs that no live worker could take, so that `show` says so; how many there
    were. One that was asked to end while it had a worker is cancelled: no step will heed that. Not
    if it has a parent, for whose lock its end waits (`cancel_without_worker`).

    Only those that have been queued for two seconds: a deploy replaces workers one after another.
    """
    parked = pauses.pause(
        connection,
        Phase.WAITING_WORKER,
        f"""
        {_LEFT} AND (cancel_requested_at IS NULL OR parent_run_id IS NULL)
        LIMIT %(batch)s FOR UPDATE SKIP LOCKED
        """,
        {"batch": BATCH},
    )
    cancel_as_asked(connection, parked)
    return len(parked)


def cancel_without_worker(connection: Connection) -> int:
    """Cancel one run that was asked to end, has a parent, and that no live worker could take; how
    many that were. Needs a transaction in which nothing else is locked: it waits for the parent,
    and whoever holds that may wait for its own parent, and so on.
    """
    parked = pauses.pause(
        connection,
        Phase.WAITING_WORKER,
        f"""
        {_LEFT} AND cancel_requested_at IS NOT NULL AND parent_run_id IS NOT NULL
        LIMIT 1 FOR UPDATE SKIP LOCKED
        """,
        {},
    )
    return cancel_as_asked(connection, parked)
