"""Threads as people read them: which there are, and what was said in one. Nothing here locks or
changes a row.

What counts is what its user started, and the runs to which those handed the conversation on; a run
that answers another's call tells its result there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.errors import UnknownThread
from celeriac.ids import ApprovalId, RunId, TenantId, ThreadId, UserId
from celeriac.reports import RunLine, Thread, ThreadLine, Wait
from celeriac_storage.reading import read_wait
from celeriac_storage.run_list import LINE, list_runs, run_line

LONGEST_TEXT_CHARACTERS = 20_000
MOST_PARTS = 2000  # of all runs that are shown, the latest


def list_threads(
    connection: Connection,
    tenant_id: TenantId,
    user_id: UserId | None = None,
    *,
    before: tuple[datetime, ThreadId] | None = None,
    limit: int = 50,
) -> list[ThreadLine]:
    """Of the tenant, or of that user, those that began last first; those that began before the
    thread `before`, given by its time and id."""
    began_before, id_before = before or (None, None)
    rows = connection.exec_driver_sql(
        f"""
        SELECT thread.thread_id, thread.user_id, thread.created_at, (
            SELECT count(*) FROM celeriac.runs AS run
            WHERE (run.tenant_id, run.thread_id) = (thread.tenant_id, thread.thread_id)
                AND parent_run_id IS NULL
        ), latest.*
        FROM celeriac.threads AS thread LEFT JOIN LATERAL (
            SELECT {LINE} FROM celeriac.runs AS run
            WHERE (run.tenant_id, run.thread_id) = (thread.tenant_id, thread.thread_id)
                AND parent_run_id IS NULL
            ORDER BY created_at DESC, run_id DESC LIMIT 1
        ) AS latest ON true
        WHERE thread.tenant_id = %(tenant_id)s
            AND thread.user_id = coalesce(%(user_id)s::text, thread.user_id)
            AND (%(began_before)s::timestamptz IS NULL
                OR (thread.created_at, thread.thread_id) < (%(began_before)s, %(id_before)s))
        ORDER BY thread.created_at DESC, thread.thread_id DESC LIMIT %(limit)s
        """,
        {
            "tenant_id": tenant_id,
            "user_id": user_id,
            "began_before": began_before,
            "id_before": id_before,
            "limit": limit,
        },
    )
    return [
        ThreadLine(
            ThreadId(thread_id),
            UserId(owner),
            created_at,
            count,
            None if latest[0] is None else run_line(latest),
        )
        for thread_id, owner, created_at, count, *latest in rows
    ]


def read_thread(
    connection: Connection, tenant_id: TenantId, thread_id: ThreadId, limit: int = 50
) -> Thread:
    """The thread and its latest runs. Raises `UnknownThread`."""
    row = connection.exec_driver_sql(
        "SELECT user_id, created_at FROM celeriac.threads WHERE tenant_id = %s AND thread_id = %s",
        (tenant_id, thread_id),
    ).fetchone()
    if row is None:
        raise unknown_thread(thread_id)
    lines = list_runs(connection, tenant_id=tenant_id, thread_id=thread_id, limit=limit)
    return Thread(thread_id, UserId(row[0]), row[1], lines)


def unknown_thread(thread_id: ThreadId) -> UnknownThread:
    """For a thread that is not there, or that the caller may not see."""
    return UnknownThread(f"there is no thread {thread_id}; it begins with its first run")


def inputs_of(connection: Connection, runs: Sequence[RunId], length: int) -> dict[RunId, str]:
    """How the inputs of these runs begin, those that are texts."""
    rows = connection.exec_driver_sql(
        "SELECT run_id, left(input #>> '{}', %s) FROM celeriac.runs"
        " WHERE run_id = ANY (%s) AND jsonb_typeof(input) = 'string'",
        (length, list(runs)),
    )
    return {RunId(run_id): text for run_id, text in rows}


@dataclass(frozen=True, slots=True)
class Said:
    """Something in a conversation: a text, or the name of a tool that was asked for."""

    by: str  # user or assistant
    text: str | None
    tool: str | None


@dataclass(frozen=True, slots=True)
class Unheard:
    """What a run was told and its model has not been told yet."""

    by: UserId
    text: str
    at: datetime


@dataclass(slots=True)
class Exchange:
    """One run of a thread, with what was said in it."""

    run: RunLine
    is_handoff: bool
    is_gone: bool  # erased or pruned: nothing that was said is left
    result: JsonValue
    error: JsonValue
    wait: Wait | None  # of one that has not ended
    said: list[Said] = field(default_factory=list)
    unheard: list[Unheard] = field(default_factory=list)
    proposals: list[tuple[ApprovalId, str]] = field(default_factory=list)  # that wait; with tools


def read_exchanges(
    connection: Connection,
    tenant_id: TenantId,
    thread_id: ThreadId,
    *,
    before: tuple[datetime, RunId] | None = None,
    limit: int = 20,
) -> list[Exchange]:
    """The latest runs of the thread before that one, the oldest of them first."""
    created_before, id_before = before or (None, None)
    rows: Any = connection.exec_driver_sql(
        f"""
        SELECT history_until IS NOT NULL, coalesce(erased_at, pruned_at) IS NOT NULL, result, error,
            {LINE}
        FROM celeriac.runs
        WHERE tenant_id = %(tenant_id)s AND thread_id = %(thread_id)s
            AND (parent_run_id IS NULL OR history_until IS NOT NULL)
            AND (%(created_before)s::timestamptz IS NULL
                OR (created_at, run_id) < (%(created_before)s, %(id_before)s))
        ORDER BY created_at DESC, run_id DESC LIMIT %(limit)s
        """,
        {
            "tenant_id": tenant_id,
            "thread_id": thread_id,
            "created_before": created_before,
            "id_before": id_before,
            "limit": limit,
        },
    ).all()
    exchanges = {}
    for is_handoff, is_gone, result, error, *line in reversed(rows):
        run = run_line(line)
        wait = None if run.status.is_terminal else read_wait(connection, run.run_id)
        exchanges[run.run_id] = Exchange(run, is_handoff, is_gone, result, error, wait)
    _add_words(connection, exchanges)
    _add_unheard(connection, exchanges)
    _add_proposals(connection, exchanges)
    return list(exchanges.values())


def _add_words(connection: Connection, exchanges: dict[RunId, Exchange]) -> None:
    rows: Any = connection.exec_driver_sql(
        """
        SELECT run_id, role, left(part ->> 'content', %(longest)s), part ->> 'tool_name'
        FROM celeriac.messages CROSS JOIN LATERAL jsonb_array_elements(
            CASE jsonb_typeof(body -> 'parts') WHEN 'array' THEN body -> 'parts' END
        ) WITH ORDINALITY AS parts (part, number)
        WHERE run_id = ANY (%(runs)s) AND role IN ('user', 'assistant') AND (
            part ->> 'part_kind' IS NULL AND jsonb_typeof(part -> 'content') = 'string'
                AND part ->> 'content' <> ''
            OR role = 'assistant' AND part ->> 'part_kind' = 'tool-call'
        )
        ORDER BY array_position(%(runs)s, run_id) DESC, position DESC, number DESC LIMIT %(most)s
        """,
        {"runs": list(exchanges), "longest": LONGEST_TEXT_CHARACTERS, "most": MOST_PARTS},
    ).all()
    for run_id, role, text, tool in reversed(rows):
        exchanges[run_id].said.append(Said(role, None if tool is not None else text, tool))


def _add_unheard(connection: Connection, exchanges: dict[RunId, Exchange]) -> None:
    rows = connection.exec_driver_sql(
        """
        SELECT run_id, author, left(part ->> 'content', %(longest)s), sent_at
        FROM celeriac.inbox CROSS JOIN LATERAL jsonb_array_elements(body -> 'parts') AS part
        WHERE run_id = ANY (%(runs)s) AND drained_step IS NULL AND body IS NOT NULL
            AND jsonb_typeof(part -> 'content') = 'string'
        ORDER BY inbox_id
        """,
        {"runs": list(exchanges), "longest": LONGEST_TEXT_CHARACTERS},
    )
    for run_id, author, text, sent_at in rows:
        exchanges[run_id].unheard.append(Unheard(UserId(author), text, sent_at))


def _add_proposals(connection: Connection, exchanges: dict[RunId, Exchange]) -> None:
    rows = connection.exec_driver_sql(
        "SELECT run_id, approval_id, tool FROM celeriac.approvals"
        " WHERE run_id = ANY (%s) AND status = 'pending' ORDER BY created_at, approval_id",
        (list(exchanges),),
    )
    for run_id, approval_id, tool in rows:
        exchanges[run_id].proposals.append((ApprovalId(approval_id), tool))
