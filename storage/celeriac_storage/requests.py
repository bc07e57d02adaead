"""What people ask of a run while it goes on: to be cancelled, or interrupted.

Asking never takes the claim away. Nobody works on a run that is queued, paused or in need of
attention, so it is stopped at once. A running one is left to the step's own commit: it names the
version of the requests it knows of, misses, learns of the new one, and records what was done as
well as that the run stops there. So a running effect is never cut off from its record. If no step
is to come any more, whoever leaves the run so calls `cancel_as_asked`.

Rows are locked in this order: the run, its children (never waited for), its parent, its thread, the
thread's next run.
"""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.errors import Conflict, UnknownRun
from celeriac.ids import RunId, UserId
from celeriac.states import Phase, RunKind, RunStatus
from celeriac_storage import ending, news, run_events
from celeriac_storage.threads import HOLDS_THREAD, wake_next_of_thread


def unknown_run(run_id: RunId) -> UnknownRun:
    return UnknownRun(f"there is no run {run_id}; `celeriac runs` lists the latest")


def erased(run_id: RunId, at: datetime) -> Conflict:
    return Conflict(
        f"run {run_id} has ended, and what it worked with was erased at {at.isoformat()}: nothing "
        "of it can be told, settled or undone any more"
    )


def request_cancel(connection: Connection, run_id: RunId, by: UserId) -> RunStatus:
    """Cancel the run, or ask its running step to; where the run stands now. Needs a transaction.

    `cancelled`: it is over, and nothing more happens. A call that a lost worker may have made is
    then `unknown`, and `resolving.resolve` can still settle it. `running`: the step in progress is
    recorded as it ends, and then the run is over. `paused`: what came of a call is still being
    found out, and after that the run is over.

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
    if status is RunStatus.CANCELLED:
        return status
    if status.is_terminal:
        raise Conflict(f"run {run_id} is {status} already; it cannot be cancelled any more")
    if status is RunStatus.RUNNING or finds_out(connection, run_id, status):
        if not is_requested:
            _ask(connection, run_id, by)
        return status
    _cancel(connection, run_id, status, by)
    # Not for a run that waits for its thread: whoever holds the thread wakes the next one, and
    # locks the thread and then a waiting run, such as this one. We would lock them the other way.
    if holds_thread:
        wake_next_of_thread(connection, tenant_id, thread_id)
    return RunStatus.CANCELLED


def request_interrupt(connection: Connection, run_id: RunId, by: UserId) -> RunStatus:
    """Stop the run, or ask its running step to, until its user says something or it is cancelled;
    where it stands now. Needs a transaction.

    `paused`: it waits for its user and lets the next run of its thread go; or what came of a call
    is still being found out, and it stops after that. `running`: the step in progress is recorded
    as it ends; a request to the model is cancelled, a tool's call is not.

    Asking again changes nothing. Raises `UnknownRun`, or `Conflict` if the run has ended, is being
    cancelled, or needs a person's attention anyway.
    """
    row = connection.exec_driver_sql(
        f"""
        SELECT status, phase, cancel_requested_at IS NOT NULL,
            interrupt_requested_at IS NOT NULL AND (last_said_at > interrupt_requested_at)
                IS NOT TRUE,
            tenant_id, thread_id, {HOLDS_THREAD}, kind,
            phase = 'waiting_timer' AND epoch = 0
        FROM celeriac.runs AS active WHERE run_id = %s FOR UPDATE
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    (
        status, phase, is_cancelled, is_requested, tenant_id, thread_id, holds_thread, kind,
        is_delayed,
    ) = row  # fmt: skip
    status = RunStatus(status)
    if is_delayed:
        raise Conflict(
            f"run {run_id} has not begun: its time has not come. `celeriac cancel {run_id}` ends it"
        )
    if kind in (RunKind.WORKFLOW, RunKind.ACTIVITY) and not status.is_terminal:
        raise Conflict(
            f"run {run_id} is of kind {kind} and waits for no user: `celeriac cancel {run_id}` "
            "ends it"
        )
    if kind == RunKind.ROLLBACK and not status.is_terminal:
        raise Conflict(
            f"run {run_id} is a rollback and waits for no user: `celeriac cancel {run_id}` stops "
            "it, and another rollback goes on from there"
        )
    if status.is_terminal or status is RunStatus.NEEDS_ATTENTION or is_cancelled:
        stands = "being cancelled" if is_cancelled and not status.is_terminal else status
        raise Conflict(f"run {run_id} is {stands}: there is nothing to interrupt")
    if is_requested or phase == Phase.WAITING_USER:
        return status
    data: dict[str, JsonValue] = {"by": by}
    run_events.append(connection, run_id, [("run.interrupt_requested", data)], is_request=True)
    connection.exec_driver_sql(
        "UPDATE celeriac.runs SET interrupt_requested_at = clock_timestamp() WHERE run_id = %s",
        (run_id,),
    )
    if status is RunStatus.RUNNING or finds_out(connection, run_id, status):
        return status
    connection.exec_driver_sql(
        """
        UPDATE celeriac.runs SET status = 'paused', phase = 'waiting_user',
            resume_phase = coalesce(resume_phase, phase), wake_at = NULL,
            published_at = NULL, publish_count = 0
        WHERE run_id = %s AND status IN ('queued', 'paused')
        """,
        (run_id,),
    )
    paused: dict[str, JsonValue] = {"phase": Phase.WAITING_USER}
    run_events.append(connection, run_id, [("run.paused", paused)], is_request=False)
    if holds_thread:  # else as for a cancel
        wake_next_of_thread(connection, tenant_id, thread_id)
    return RunStatus.PAUSED


def asked_to_stop(connection: Connection, run_ids: Collection[RunId]) -> list[RunId]:
    """Those of the runs that were asked to end or to pause. Locks nothing."""
    rows = connection.exec_driver_sql(
        "SELECT run_id FROM celeriac.runs WHERE run_id = ANY (%s)"
        " AND (cancel_requested_at IS NOT NULL OR interrupt_requested_at IS NOT NULL"
        " OR deadline_passed_at IS NOT NULL)",
        (list(run_ids),),
    )
    return [RunId(row[0]) for row in rows]


def cancel_as_asked(connection: Connection, run_ids: Collection[RunId]) -> int:
    """Cancel those of the runs that were asked to end while a worker held them; how many.

    For runs that nobody holds now and that no step is to come for: after the last strike, or
    without a worker. The transaction has locked them. Their threads are left to the scheduler
    (`threads.idle_threads`): to lock many of them here could meet somebody who does the same.
    """
    rows = connection.exec_driver_sql(
        "SELECT run_id, status FROM celeriac.runs WHERE run_id = ANY (%s)"
        " AND cancel_requested_at IS NOT NULL AND status IN ('paused', 'needs_attention')",
        (list(run_ids),),
    ).all()
    for run_id, status in rows:
        _cancel(connection, run_id, RunStatus(status))
    return len(rows)


def cancel_children(connection: Connection, run_id: RunId) -> None:
    """Cancel the runs that this run has started, in the transaction in which it ends.

    One that somebody has locked just now is left to a scheduler (`children.orphans`): it may be
    ending, and then waits for our run.
    """
    rows = connection.exec_driver_sql(
        """
        SELECT run_id FROM celeriac.runs
        WHERE parent_run_id = %s AND parent_call_id IS NOT NULL AND finished_at IS NULL
        FOR UPDATE SKIP LOCKED
        """,
        (run_id,),
    ).all()
    for (child,) in rows:
        request_cancel(connection, RunId(child), by_parent(run_id))


def by_parent(run_id: RunId) -> UserId:
    """Who cancels the children of a run that has ended."""
    return UserId(f"run {run_id}")  # no user's id has a blank


def finds_out(connection: Connection, run_id: RunId, status: RunStatus) -> bool:
    """Whether the run only waits for the moment to look what came of a call."""
    if status is not RunStatus.PAUSED:
        return False
    row = connection.exec_driver_sql(
        "SELECT FROM celeriac.runs JOIN celeriac.effects USING (run_id)"
        " WHERE run_id = %s AND phase = 'waiting_timer' AND state = 'unknown' LIMIT 1",
        (run_id,),
    ).fetchone()
    return row is not None


def _ask(connection: Connection, run_id: RunId, by: UserId) -> None:
    connection.exec_driver_sql(
        """
        WITH run AS (
            UPDATE celeriac.runs SET cancel_requested_at = clock_timestamp(),
                request_version = request_version + 1, last_event_seq = last_event_seq + 1
            WHERE run_id = %(run_id)s AND status IN ('running', 'paused')
            RETURNING run_id, last_event_seq
        )
        INSERT INTO celeriac.events (run_id, seq, type, data)
        SELECT run_id, last_event_seq, 'run.cancel_requested', %(data)s::jsonb FROM run
        """,
        {"run_id": run_id, "data": dumps({"by": by})},
    )
    news.add(connection, run_id)


def _cancel(
    connection: Connection, run_id: RunId, was: RunStatus, by: UserId | None = None
) -> None:
    facts: dict[str, JsonValue] = {"outcome": "cancelled"}
    if by is not None:  # else `run.cancel_requested` says it, as before a step that heeds it
        facts["by"] = by
    ending.end(connection, run_id, was, ending.Ending(RunStatus.CANCELLED, "cancelled", facts))
    cancel_children(connection, run_id)
