"""What users say to a run while it goes on: kept here until a step's commit adds it to the
messages (`steps`).

Rows are locked in this order: the run, its thread.
"""

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.errors import Conflict
from celeriac.ids import RunId, TenantId, ThreadId, UserId
from celeriac.states import Phase, RunKind, RunStatus
from celeriac_storage import pauses, run_events
from celeriac_storage.requests import unknown_run
from celeriac_storage.threads import HOLDS_THREAD, wait_for_turn


def say(
    connection: Connection,
    run_id: RunId,
    message: dict[str, JsonValue],
    by: UserId,
    key: str | None = None,
) -> RunStatus:
    """Tell the run something, `message` in stored form; where it stands then. Needs a transaction.

    The model is told once, after the results of the calls that it has asked for. A run that waits
    for its user goes on, or waits for its thread's turn; any other pause lasts as long as before.

    With a `key`, saying the same again under it changes nothing, also after the run has ended; it
    is one of all runs' keys (`key_of_word`, `key_of_start`).

    Raises `UnknownRun`, or `Conflict` if the run has ended or is being cancelled, or if something
    else was said under the key. A run that fails or is cancelled later may end without having told
    its model.
    """
    row = connection.exec_driver_sql(
        """
        SELECT status, phase, cancel_requested_at IS NOT NULL, tenant_id, thread_id, kind
        FROM celeriac.runs WHERE run_id = %s FOR UPDATE
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    status, phase, is_cancel_requested, tenant_id, thread_id, kind = row
    status = RunStatus(status)
    if key is not None and said_under(connection, key, message) is not None:
        return status
    if status.is_terminal:
        raise Conflict(
            f"run {run_id} is {status} and hears nothing any more; start another run in its thread "
            f"with --thread {thread_id}"
        )
    if kind != RunKind.AGENT:
        raise Conflict(_unheard(run_id, RunKind(kind)))
    if is_cancel_requested:
        raise Conflict(f"run {run_id} is being cancelled and hears nothing any more")
    added = connection.exec_driver_sql(
        "INSERT INTO celeriac.inbox (run_id, author, body, key) VALUES (%s, %s, %s::jsonb, %s)"
        " ON CONFLICT DO NOTHING",
        (run_id, by, dumps(message), key),
    )
    if added.rowcount == 0:  # only a start's: a word's belongs to the run that we have locked
        raise Conflict("the same start has been told to a run of another thread meanwhile")
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


def _unheard(run_id: RunId, kind: RunKind) -> str:
    if kind is RunKind.WORKFLOW:
        return (
            f"run {run_id} is a workflow, whose code hears no words: tell it of an event with "
            f"`celeriac send-event {run_id} NAME JSON`"
        )
    return f"run {run_id} is of kind {kind}: there is no model in it that could be told"


def said_under(connection: Connection, key: str, message: dict[str, JsonValue]) -> RunId | None:
    """The run that was told `message` under this key; None if nothing was said under it. Raises
    `Conflict` if it was something else."""
    row = connection.exec_driver_sql(
        "SELECT run_id, coalesce(body = said, hash = sha256(convert_to(said::text, 'UTF8')))"
        " FROM celeriac.inbox, CAST(%s AS jsonb) AS said WHERE key = %s",
        (dumps(message), key),
    ).fetchone()
    if row is None:
        return None
    if not row[1]:
        raise Conflict(
            f"run {row[0]} was told something else under the key {key.rpartition(':')[2]}; nothing "
            "was said now. Say it under another key"
        )
    return RunId(row[0])


def listener_under(
    connection: Connection, run_id: RunId, tenant_id: TenantId
) -> tuple[RunId, UserId] | None:
    """The tenant's run that was told what the run of this id was to start from, and whose it is;
    None if none was."""
    row = connection.exec_driver_sql(
        "SELECT run_id, user_id FROM celeriac.inbox JOIN celeriac.runs USING (run_id)"
        " WHERE key = %s AND tenant_id = %s",
        (key_of_start(run_id), tenant_id),
    ).fetchone()
    return None if row is None else (RunId(row[0]), UserId(row[1]))


def key_of_word(run_id: RunId, key: str) -> str:
    """The key of something that is said to this run."""
    return f"{run_id}:{key}"  # no id contains a colon


def key_of_start(run_id: RunId) -> str:
    """The key of the input that was to start this run, and is said to another one instead."""
    return f":{run_id}"


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
