"""A transactional tool call: its writes and the step's commit are one transaction."""

from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError

from celeriac.codec import JsonValue
from celeriac.secrets import redact
from celeriac.tools import Tool
from celeriac_storage.claims import Claim
from celeriac_storage.database import IDLE_IN_TRANSACTION, is_lost_race, sqlstate
from celeriac_storage.step_record import Committed, StepRecord
from celeriac_tasks.acting import Acting, ToolFailed
from celeriac_tasks.calling import Raised
from celeriac_tasks.committing import MAX_TRIES
from celeriac_tasks.preconditions import obstacle, unclear
from celeriac_tasks.transition import Transition
from celeriac_tasks.worker_process import WorkerProcess

_OUT_OF_TIME = {"57014", "55P03"}  # statement_timeout, lock_timeout: `begin_transactional`
# Our trigger refused a COMMIT, or the mark that `begin_transactional` set is gone with its
# transaction, which the commit's own check finds.
_FAILED_BEFORE = "25P02"  # in a failed transaction
_ENDED_BY_TOOL = {"CE004", "CE005", "25P01", _FAILED_BEFORE}


class _Stopped(Exception):
    """The call must not be made: roll its transaction back, and commit `left` instead."""

    def __init__(self, left: Transition) -> None:
        super().__init__(left.record.reason)
        self.left = left


def commit_with_tool(
    worker: WorkerProcess,
    acting: Acting,
    claim: Claim,
    tool: Tool[..., Any],
    commit: Callable[[Connection, StepRecord], Committed],
) -> tuple[Transition, Committed]:
    """Ask the tool's precondition, run the tool and commit the step with what it wrote, or neither.

    A lost race with another transaction is run again from the start. A tool that fails, or spoils
    the transaction, is told to the model in a second transaction. (A savepoint would save that one,
    and cost two round trips for each tool that does not fail.) Raises `Fenced`,
    `RequestsChanged` or `DatabaseUnavailable`, with everything rolled back.
    """
    (effect,) = acting.effects
    for tries_left in reversed(range(MAX_TRIES)):
        is_marked = is_asking = False
        try:
            with worker.tool_database.begin() as connection:
                has_returned = False
                with worker.active:
                    acting.mark(connection)
                is_marked = is_asking = True
                if (stopped := obstacle(acting, claim, tool, effect, connection)) is not None:
                    raise _Stopped(stopped)
                is_asking = False
                deed = acting.transact(connection)
                has_returned = True
                with worker.active:
                    return deed, commit(connection, deed.record)
        except _Stopped as stop:
            failed = stop.left
        except ToolFailed as failure:
            failed = acting.failed(failure.raised)
        except (DBAPIError, InvalidRequestError, psycopg.Error) as error:
            state = sqlstate(error)
            if is_lost_race(error) and tries_left:
                continue
            is_ended = state in _ENDED_BY_TOOL or isinstance(error, InvalidRequestError)
            if not is_marked or (has_returned and not is_ended):
                raise  # our own trouble, such as a row that somebody holds, or a full disk
            raised = Raised(_explain(error, tool.name), is_definite=True)
            failed = (
                unclear(acting, claim, tool, effect, raised) if is_asking else acting.failed(raised)
            )
        with worker.tool_database.begin() as connection, worker.active:
            return failed, commit(connection, failed.record)
    raise AssertionError("the last try returns or raises")


def _explain(error: Exception, tool: str) -> dict[str, JsonValue]:
    state = sqlstate(error)
    if state == _FAILED_BEFORE:
        kind = "tool_broke_transaction"
        message = (
            f"a statement of tool {tool} failed, and the tool went on in the step's transaction, "
            "which PostgreSQL allows nobody; all its writes were rolled back. A transactional tool "
            "puts what may fail into a savepoint: `with ctx.connection.begin_nested():`"
        )
    elif state in _ENDED_BY_TOOL or isinstance(error, InvalidRequestError):
        kind = "tool_ended_transaction"
        message = (
            f"tool {tool} ended the step's transaction (COMMIT, ROLLBACK or close()); all its "
            "writes were rolled back. A transactional tool must leave the transaction to the step"
        )
    elif state in _OUT_OF_TIME:
        kind = "timeout"
        message = f"a statement of tool {tool} took longer than the tool's timeout; undone"
    elif state == IDLE_IN_TRANSACTION:
        kind = "tool_left_transaction_idle"
        message = (
            f"tool {tool} left the step's transaction idle for longer than the worker's lease; all "
            "its writes were rolled back. Do slow work in a tool of its own"
        )
    else:
        kind = "database_error"
        message = f"{redact(str(getattr(error, 'orig', error))).strip()} (SQLSTATE {state})"
    return {"kind": kind, "message": message}
