"""What users say to a run while it goes on: kept here until a step's commit adds it to the
messages (`steps`).

Rows are locked in this order: the run, its thread.
"""

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.errors import Conflict
from celeriac.ids import RunId, TenantId, ThreadId, UserId
from celeriac.states import Phase, RunStatus
from celeriac_storage import pauses, run_events
from celeriac_storage.requests import unknown_run
from celeriac_storage.threads import HOLDS_THREAD, wait_for_turn


def say(
    connection: Connection, run_id: RunId, message: dict[str, JsonValue], by: UserId
) -> RunStatus:
    """Tell the run something, `message` in stored form; where it stands then. Needs a transaction.

    The model is told once, after the results of the calls that it has asked for. A run that waits
    for its user goes on, or waits for its thread's turn; any other pause lasts as long as before.

    Raises `UnknownRun`, or `Conflict` if the run has ended or is being cancelled. A run that fails
    or is cancelled later may end without having told its model.
    """
    row = connection.exec_driver_sql(
        """
        SELECT status, phase, cancel_requested_at IS NOT NULL, tenant_id, thread_id,
            kind = 'rollback'
        FROM celeriac.runs WHERE run_id = %s FOR UPDATE
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    status, phase, is_cancel_requested, tenant_id, thread_id, is_rollback = row
    status = RunStatus(status)
    if status.is_terminal:
        raise Conflict(
            f"run {run_id} is {status} and hears nothing any more; start another run in its thread "
            f"with --thread {thread_id}"
        )
    if is_rollback:
        raise Conflict(f"run {run_id} is a rollback: there is no model in it that could be told")
    if is_cancel_requested:
        raise Conflict(f"run {run_id} is being cancelled and hears nothing any more")
    connection.exec_driver_sql(
        "INSERT INTO celeriac.inbox (run_id, author, body) VALUES (%s, %s, %s::jsonb)",
        (run_id, by, dumps(message)),
    )
    connection.exec_driver_sql(
        # Not now(), which is when we began to wait for the run: what is said after an interrupt
        # must not look older than that.
        "UPDATE celeriac.runs SET words_waiting = words_waiting + 1,"
        " last_said_at = clock_timestamp() WHERE run_id = %s",
        (run_id,),
    )
    run_events.append(connection, run_id, [("run.said", {"by": by})], is_request=True)
    if phase != Phase.WAITING_USER:
        return status
    pauses.wake(connection, Phase.WAITING_USER, "%(run_id)s", {"run_id": run_id})
    # While it waited for its user, it let the next run of its thread go.
    if wait_for_turn(connection, run_id, tenant_id, thread_id):
        return RunStatus.PAUSED
    return RunStatus.QUEUED


def listener_of_thread(
    connection: Connection, tenant_id: TenantId, thread_id: ThreadId
) -> tuple[RunId, str] | None:
    """The thread's run that is to hear what its user says, and that run's agent: the active one, or
    else the latest that waits for its user. None if there is neither, or if it is being cancelled.
    """
    row = connection.exec_driver_sql(
        f"""
        SELECT run_id, agent FROM celeriac.runs AS active
        WHERE tenant_id = %s AND thread_id = %s AND cancel_requested_at IS NULL
            AND ({HOLDS_THREAD} OR status = 'paused' AND phase = 'waiting_user')
        ORDER BY phase = 'waiting_user', thread_position DESC LIMIT 1
        """,
        (tenant_id, thread_id),
    ).fetchone()
    return None if row is None else (RunId(row[0]), row[1])
