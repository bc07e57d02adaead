"""Where a run stands, what it waits for, and its history so far: what is asked again and again
while somebody watches it. Nothing here locks or changes a row.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import RunId
from celeriac.reports import Event, Wait
from celeriac.states import Phase, RunStatus
from celeriac_storage.requests import unknown_run
from celeriac_storage.threads import HOLDS_THREAD

EVENTS_PER_READ = 1000


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is: all that has to be asked again and again while somebody waits for it."""

    status: RunStatus
    step: int
    epoch: int
    last_event_seq: int


def read_position(connection: Connection, run_id: RunId) -> Position:
    """Where the run stands. Raises `UnknownRun`."""
    row = connection.exec_driver_sql(
        "SELECT status, step, epoch, last_event_seq FROM celeriac.runs WHERE run_id = %s", (run_id,)
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    return Position(RunStatus(row[0]), row[1], row[2], row[3])


def list_events(
    connection: Connection, run_id: RunId, after: int = 0, limit: int = EVENTS_PER_READ
) -> list[Event]:
    """The run's next events after `after`, at most `limit` of them.

    A cursor on `seq` misses nothing: it is given out under the run's row lock, so no event with a
    lower one commits later.
    """
    rows = connection.exec_driver_sql(
        "SELECT seq, type, at, data FROM celeriac.events"
        " WHERE run_id = %s AND seq > %s ORDER BY seq LIMIT %s",
        (run_id, after, limit),
    )
    return [Event(run_id, seq, type_, at, data) for seq, type_, at, data in rows]


def read_wait(connection: Connection, run_id: RunId) -> Wait:
    """What the run waits for, in facts; words are the reader's. Raises `UnknownRun`."""
    row: Any = connection.exec_driver_sql(
        f"""
        SELECT phase, queue, coalesce(wake_at, (
                SELECT min(due_at) FROM celeriac.timers
                WHERE timers.run_id = waiting.run_id AND fired_at IS NULL
            )), CASE WHEN phase = 'waiting_thread' THEN (
                SELECT run_id FROM celeriac.runs AS active
                WHERE active.tenant_id = waiting.tenant_id
                    AND active.thread_id = waiting.thread_id AND {HOLDS_THREAD}
                LIMIT 1
            ) END, cancel_requested_at IS NOT NULL, ARRAY(
                SELECT call_id FROM celeriac.effects
                WHERE effects.run_id = waiting.run_id AND state = 'unknown'
                ORDER BY step, call_index
            ), last_event_seq
        FROM celeriac.runs AS waiting WHERE run_id = %s
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    phase, queue, wake_at, behind, is_cancel_requested, unknown, last_event_seq = row
    return Wait(
        None if phase is None else Phase(phase),
        queue,
        wake_at,
        behind,
        is_cancel_requested,
        unknown,
        last_event_seq,
    )
