"""What people ask of a run while it goes on: so far, to cancel it.

Asking never takes the claim away. Nobody works on a run that is queued, paused or in need of
attention, so it is cancelled at once. A running one is left to the step's own commit: it names the
version of the requests it knows of, misses, learns of the new one, and records what was done as
well as that the run ends there. So a running effect is never cut off from its record.

Rows are locked in this order: the run, its thread, the thread's next run.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.errors import Conflict, UnknownRun
from celeriac.ids import CallId, RunId, UserId
from celeriac.states import RunStatus
from celeriac_storage.steps import HOLDS_THREAD, wake_next_of_thread


def unknown_run(run_id: RunId) -> UnknownRun:
    return UnknownRun(f"there is no run {run_id}; `celeriac runs` lists the latest")


def request_cancel(connection: Connection, run_id: RunId, by: UserId) -> RunStatus:
    """Cancel the run, or ask its running step to; where the run stands now. Needs a transaction.

    `cancelled`: it is over, and nothing more happens. A call that a lost worker may have made is
    then `unknown`, and `resolving.resolve` can still settle it. `running`: the step in progress is
    recorded as it ends, and then the run is over.

    Asking again changes nothing. Raises `UnknownRun`, or `Conflict` if the run has ended otherwise.
    """
    row = connection.exec_driver_sql(
        f"""
        SELECT status, cancel_requested_at IS NOT NULL, tenant_id, thread_id, {HOLDS_THREAD}
        FROM celeriac.runs AS active WHERE run_id = %s FOR UPDATE
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    status, is_requested, tenant_id, thread_id, holds_thread = row
    status = RunStatus(status)
    if status is RunStatus.CANCELLED or (status is RunStatus.RUNNING and is_requested):
        return status
    if status.is_terminal:
        raise Conflict(f"run {run_id} is {status} already; it cannot be cancelled any more")
    if status is RunStatus.RUNNING:
        _ask(connection, run_id, by)
        return status
    _cancel(connection, run_id, status, by)
    # Not for a run that waits for its thread: whoever holds the thread wakes the next one, and
    # locks the thread and then a waiting run, such as this one. We would lock them the other way.
    if holds_thread:
        wake_next_of_thread(connection, tenant_id, thread_id)
    return RunStatus.CANCELLED


def _ask(connection: Connection, run_id: RunId, by: UserId) -> None:
    connection.exec_driver_sql(
        """
        WITH run AS (
            UPDATE celeriac.runs SET cancel_requested_at = clock_timestamp(),
                request_version = request_version + 1, last_event_seq = last_event_seq + 1
            WHERE run_id = %(run_id)s AND status = 'running'
            RETURNING run_id, last_event_seq
        )
        INSERT INTO celeriac.events (run_id, seq, type, data)
        SELECT run_id, last_event_seq, 'run.cancel_requested', %(data)s::jsonb FROM run
        """,
        {"run_id": run_id, "data": dumps({"by": by})},
    )


def _cancel(connection: Connection, run_id: RunId, was: RunStatus, by: UserId) -> None:
    lost = _give_up_in_flight(connection, run_id)
    events: list[dict[str, JsonValue]] = [
        {"type": "effect.unknown", "data": {"call_id": call_id, "tool": tool, "error": _LOST}}
        for call_id, tool in lost
    ]
    events.append({"type": "run.cancelled", "data": {"outcome": "cancelled", "by": by}})
    connection.exec_driver_sql(
        """
        WITH run AS (
            UPDATE celeriac.runs SET status = 'cancelled', outcome = 'cancelled',
                phase = NULL, resume_phase = NULL, wake_at = NULL, error = NULL,
                cancel_requested_at = coalesce(cancel_requested_at, clock_timestamp()),
                request_version = request_version + 1, finished_at = clock_timestamp(),
                published_at = NULL, publish_count = 0,
                last_event_seq = last_event_seq + jsonb_array_length(%(events)s::jsonb)
            WHERE run_id = %(run_id)s AND status = %(was)s
            RETURNING run_id, last_event_seq
        )
        INSERT INTO celeriac.events (run_id, seq, type, data)
        SELECT run_id, last_event_seq - jsonb_array_length(%(events)s::jsonb) + entry.number,
            entry.value ->> 'type', entry.value -> 'data'
        FROM run, jsonb_array_elements(%(events)s::jsonb) WITH ORDINALITY AS entry (value, number)
        """,
        {"run_id": run_id, "was": was.value, "events": dumps(events)},
    )


_LOST: dict[str, JsonValue] = {
    "kind": "worker_lost",
    "message": "the worker that made the call was lost, and the run was cancelled before anybody "
    "found out what came of it",
}


def _give_up_in_flight(connection: Connection, run_id: RunId) -> Sequence[tuple[CallId, str]]:
    """No step will come to find what a lost worker left in flight, so now it is `unknown`."""
    rows: Sequence[Any] = connection.exec_driver_sql(
        """
        WITH lost AS (
            UPDATE celeriac.effects SET state = 'unknown', error = %(error)s::jsonb,
                settled_at = clock_timestamp()
            WHERE run_id = %(run_id)s AND state = 'in_flight'
            RETURNING run_id, call_id, attempt, tool
        ), entry AS (
            INSERT INTO celeriac.effect_attempts
                (run_id, call_id, attempt, entry, outcome, evidence)
            SELECT run_id, call_id, attempt, (
                SELECT max(entry) + 1 FROM celeriac.effect_attempts AS earlier
                WHERE (earlier.run_id, earlier.call_id, earlier.attempt)
                    = (lost.run_id, lost.call_id, lost.attempt)
            ), 'unknown', %(error)s::jsonb
            FROM lost
        )
        SELECT call_id, tool FROM lost ORDER BY call_id
        """,
        {"run_id": run_id, "error": dumps(_LOST)},
    ).fetchall()
    return [(CallId(call_id), tool) for call_id, tool in rows]
