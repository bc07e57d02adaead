"""The log of a workflow, as people look at it: what its code has asked for, and what came of it."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import RunId
from celeriac.reports import Activity
from celeriac.states import Phase, RunStatus
from celeriac_storage.entry_ids import ENTRY_ID

ACTIVITIES_SHOWN = 1000


def read_log(
    connection: Connection, run_id: RunId, generation: int | None = None
) -> list[Activity]:
    """The end of the workflow's log: of that generation, or of the present one."""
    rows: Sequence[Any] = connection.exec_driver_sql(
        f"""
        SELECT * FROM (
            SELECT number, entry.kind, name,
                CASE WHEN entry.kind IN ('value', 'version') THEN 'answered'
                    WHEN entry.told IS NULL THEN 'open'
                    WHEN entry.error IS NULL THEN 'completed' ELSE 'failed' END AS state,
                arguments, entry.result, entry.error, made_by, made.status, made.phase, due_at,
                wait_group IS NOT NULL AND entry.told IS NULL AS is_awaited, entry.told, asked_at,
                entry.ended_at, made.worker_id, entry.generation
            FROM celeriac.activities AS entry
            LEFT JOIN celeriac.runs AS made ON made.run_id = made_by
            LEFT JOIN celeriac.timers ON entry.kind = 'timer' AND timers.run_id = entry.run_id
                AND timer_id = {ENTRY_ID}
            WHERE entry.run_id = %(run_id)s AND entry.generation = coalesce(%(generation)s, (
                SELECT generation FROM celeriac.runs WHERE run_id = %(run_id)s
            ))
            ORDER BY number DESC LIMIT %(limit)s
        ) AS latest ORDER BY number
        """,
        {"run_id": run_id, "generation": generation, "limit": ACTIVITIES_SHOWN},
    ).fetchall()
    return [
        Activity(
            number=row.number,
            kind=row.kind,
            name=row.name,
            state=row.state,
            arguments=row.arguments,
            result=row.result,
            error=row.error,
            run_id=row.made_by,
            run_status=None if row.status is None else RunStatus(row.status),
            run_phase=None if row.phase is None else Phase(row.phase),
            due_at=row.due_at,
            is_awaited=row.is_awaited,
            told=row.told,
            asked_at=row.asked_at,
            ended_at=row.ended_at,
            worker_id=row.worker_id,
            generation=row.generation,
        )
        for row in rows
    ]


def generation_of(connection: Connection, run_id: RunId) -> int:
    """How often the run, which there is, has begun again with an empty log; 0 of no workflow."""
    generation: int = connection.exec_driver_sql(
        "SELECT coalesce(generation, 0) FROM celeriac.runs WHERE run_id = %s", (run_id,)
    ).scalar_one()
    return generation
