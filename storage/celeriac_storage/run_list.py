"""Runs in a list, the newest first. Nothing here locks or changes a row."""

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Text, cast, func, select, tuple_
from sqlalchemy.exc import DBAPIError

from celeriac.errors import InvalidInput
from celeriac.ids import RunId, TenantId, ThreadId, UserId, WorkerId
from celeriac.reports import RunLine
from celeriac.states import Phase, RunKind, RunStatus
from celeriac_storage.database import sqlstate
from celeriac_storage.tables import runs

SEARCH_SECONDS = 5
_QUERY_CANCELED = "57014"
_LINE = [each.name for each in fields(RunLine)]
LINE = ", ".join(_LINE)
"""The columns of a run in a list."""


def list_runs(
    connection: Connection,
    *,
    tenant_id: TenantId | None = None,
    user_id: UserId | None = None,
    thread_id: ThreadId | None = None,
    status: RunStatus | None = None,
    agent: str | None = None,
    outcome: str | None = None,
    search: str | None = None,
    with_activities: bool = False,
    before: tuple[datetime, RunId] | None = None,
    limit: int = 50,
) -> list[RunLine]:
    """Runs, newest first: those of that tenant, user, thread, status, agent and outcome, each if
    given, and that were created before the run `before`, given by its time and id. The runs of
    workflows' activities are among them only `with_activities`, and where they need a person: a
    workflow is `paused` meanwhile, so nothing else of that status would stand for them.

    `search` is the begin of a run's id, or any text of its input, in capitals or not. It reads the
    inputs, so it takes as long as there are runs. Needs a transaction, and raises `InvalidInput`
    after `SEARCH_SECONDS`.
    """
    if search is not None:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{SEARCH_SECONDS}s'")
    query = select(*(runs.c[column] for column in _LINE))
    if not with_activities and status is not RunStatus.NEEDS_ATTENTION:
        query = query.where(runs.c.kind != RunKind.ACTIVITY.value)
    if status is not None:
        query = query.where(runs.c.status == status.value)
    if agent is not None:
        query = query.where(runs.c.agent == agent)
    if outcome is not None:
        query = query.where(runs.c.outcome == outcome)
    if search is not None:
        query = query.where(
            runs.c.run_id.startswith(search, autoescape=True)
            | (func.strpos(func.lower(cast(runs.c.input, Text)), search.lower()) > 0)
        )
    if tenant_id is not None:
        query = query.where(runs.c.tenant_id == tenant_id)
    if user_id is not None:
        query = query.where(runs.c.user_id == user_id)
    if thread_id is not None:
        query = query.where(runs.c.thread_id == thread_id)
    if before is not None:
        query = query.where(tuple_(runs.c.created_at, runs.c.run_id) < before)
    try:
        rows = connection.execute(
            query.order_by(runs.c.created_at.desc(), runs.c.run_id.desc()).limit(limit)
        )
    except DBAPIError as error:
        if search is None or sqlstate(error) != _QUERY_CANCELED:
            raise
        raise InvalidInput(
            f"the search for {search!r} was given up after {SEARCH_SECONDS} s: narrow it by a "
            "status, an agent, a user or a thread"
        ) from error
    return [run_line(row) for row in rows]


def run_line(row: Sequence[Any]) -> RunLine:
    """A row of the columns `LINE`."""
    run_id, thread_id, user_id, agent, status, phase, outcome, step, epoch, worker_id, *rest = row
    return RunLine(
        RunId(run_id),
        ThreadId(thread_id),
        UserId(user_id),
        agent,
        RunStatus(status),
        None if phase is None else Phase(phase),
        outcome,
        step,
        epoch,
        None if worker_id is None else WorkerId(worker_id),
        *rest,
    )
