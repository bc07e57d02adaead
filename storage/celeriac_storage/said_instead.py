"""Telling the input of a run to the one that is active in its thread, instead of starting it."""

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.errors import Conflict, ThreadBusy
from celeriac.ids import RunId
from celeriac.states import Phase, RunStatus
from celeriac_storage import inbox
from celeriac_storage.new_run import NewRun, Started
from celeriac_storage.taken_ids import run_exists


def say_instead(connection: Connection, new: NewRun, word: dict[str, JsonValue]) -> Started | None:
    """Tell the input to the run that is to hear it; None if the thread has no such run.

    The thread is locked already, so nobody starts another one meanwhile; nobody who has locked a
    run waits for a thread.
    """
    key = inbox.key_of_start(new.run_id)
    known = inbox.listener_under(connection, new.run_id, new.tenant_id)
    if known is not None and known[1] != new.user_id:
        raise run_exists(new.run_id)
    told = inbox.said_under(connection, key, word)
    if told is not None:
        return _told(connection, new, told)
    listener = inbox.listener_of_thread(connection, new.tenant_id, new.thread_id)
    if listener is None:
        return None
    run_id, agent = listener
    if agent != new.agent:
        raise ThreadBusy(
            f"thread {new.thread_id} is busy with run {run_id} of agent {agent}, which is not to "
            f"be told what is meant for agent {new.agent}; wait for its end, or start with "
            "on_busy=wait to queue behind it"
        )
    is_there = connection.exec_driver_sql(
        "SELECT FROM celeriac.runs WHERE run_id = %s", (new.run_id,)
    ).fetchone()
    if is_there is not None:  # or who starts it again after an error would say its input to it
        raise run_exists(new.run_id)
    try:
        inbox.say(connection, run_id, word, new.by or new.user_id, key)
    except Conflict:  # since we looked it has ended, or was the same start told to another thread's
        told = inbox.said_under(connection, key, word)
        return None if told is None else _told(connection, new, told)
    return _told(connection, new, run_id)


def _told(connection: Connection, new: NewRun, run_id: RunId) -> Started:
    """Where the run stands that was told the input instead."""
    status, phase, thread_id = connection.exec_driver_sql(
        "SELECT status, phase, thread_id FROM celeriac.runs WHERE run_id = %s", (run_id,)
    ).one()
    if thread_id != new.thread_id:
        raise Conflict(
            f"the input of run {new.run_id} was told to run {run_id} of thread {thread_id} before, "
            f"and not to thread {new.thread_id}; nothing was said now. Choose another run id"
        )
    return Started(RunStatus(status), None if phase is None else Phase(phase), run_id)
