"""Runs whose deadline has passed.

A run that nobody works on ends at once, whatever it waits for. A step in progress is recorded
first, and so is a call that is being found out; then the run is over. One that needs a person's
attention stays before that person, and ends as soon as it goes on: a call whose outcome nobody
knows must not be lost to sight.

Rows are locked in this order: the run, its children, its parent, its thread. Only the run is waited
for.
"""

from datetime import UTC, datetime

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.ids import RunId
from celeriac.states import RunStatus
from celeriac_storage import ending, run_events
from celeriac_storage.requests import cancel_children, finds_out
from celeriac_storage.threads import HOLDS_THREAD, wake_next_of_thread


def overdue(connection: Connection, limit: int = 100) -> list[RunId]:
    """Runs whose deadline has passed, for `end`, a transaction each: those that nobody has looked
    at since, and those on which nobody works. (A step that was in progress then may be lost.)"""
    rows = connection.exec_driver_sql(
        """
        SELECT run_id FROM celeriac.runs
        WHERE deadline_at <= clock_timestamp() AND finished_at IS NULL
            AND (deadline_passed_at IS NULL OR status IN ('queued', 'paused'))
        ORDER BY deadline_at LIMIT %s
        """,
        (limit,),
    )
    return [RunId(row[0]) for row in rows]


def end(connection: Connection, run_id: RunId) -> bool:
    """Note that the run's deadline has passed, and end it if nobody works on it; whether it was
    news. Needs a transaction. A run that somebody has locked is left for the next time."""
    row = connection.exec_driver_sql(
        f"""
        SELECT status, deadline_at, tenant_id, thread_id, deadline_passed_at IS NULL, {HOLDS_THREAD}
        FROM celeriac.runs AS active
        WHERE run_id = %s AND deadline_at <= clock_timestamp() AND finished_at IS NULL
            AND (deadline_passed_at IS NULL OR status IN ('queued', 'paused'))
        FOR UPDATE SKIP LOCKED
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        return False
    status, deadline_at, tenant_id, thread_id, is_news, holds_thread = row
    status = RunStatus(status)
    if is_news:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET deadline_passed_at = clock_timestamp() WHERE run_id = %s",
            (run_id,),
        )
        passed: dict[str, JsonValue] = {"deadline_at": deadline_at.astimezone(UTC).isoformat()}
        run_events.append(connection, run_id, [("run.deadline_passed", passed)], is_request=True)
    if status in (RunStatus.RUNNING, RunStatus.NEEDS_ATTENTION) or finds_out(
        connection, run_id, status
    ):
        return bool(is_news)
    error = passed_error(deadline_at)
    facts: dict[str, JsonValue] = {"outcome": "limit_exceeded", "error": error}
    ending.end(
        connection,
        run_id,
        status,
        ending.Ending(RunStatus.FAILED, "limit_exceeded", facts, error),
    )
    cancel_children(connection, run_id)
    if holds_thread:  # else as for a cancel
        wake_next_of_thread(connection, tenant_id, thread_id)
    return True


def passed_error(deadline_at: datetime | None) -> dict[str, JsonValue]:
    """Why a run ended."""
    when = "" if deadline_at is None else f", {deadline_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC,"
    return {
        "kind": "limit_exceeded",
        "limit": "deadline",
        "message": f"the run's deadline{when} has passed before it was done; start another one with"
        " more time",
    }
