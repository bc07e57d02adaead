"""Into a pause and out of it: how a run that nobody holds moves between `queued` and `paused`.

A step that pauses its run does so in its own commit (`steps`).
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import RunId
from celeriac.states import Phase
from celeriac_storage import news
from celeriac_storage.dispatch import Due


def pause(
    connection: Connection, phase: Phase, chosen: str, parameters: Mapping[str, Any]
) -> list[RunId]:
    """Pause queued runs; they remember the phase they go back to.

    `chosen` is a query for their ids, with `parameters` (`phase` is taken).
    """
    rows = connection.exec_driver_sql(
        f"""
        WITH paused AS (
            UPDATE celeriac.runs SET status = 'paused', resume_phase = phase, phase = %(phase)s,
                published_at = NULL, publish_count = 0, last_event_seq = last_event_seq + 1
            WHERE status = 'queued' AND run_id IN ({chosen})
            RETURNING run_id, last_event_seq
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, last_event_seq, 'run.paused',
                jsonb_build_object('phase', %(phase)s::text)
            FROM paused
        )
        SELECT run_id FROM paused
        """,
        {**parameters, "phase": phase},
    )
    paused = [RunId(row[0]) for row in rows]
    news.add(connection, *paused)
    return paused


def wake(
    connection: Connection,
    phase: Phase,
    chosen: str,
    parameters: Mapping[str, Any],
    *,
    is_published: bool = False,
) -> list[Due]:
    """Queue runs that are paused in `phase`, in the phase they remember.

    `chosen` is a query for their ids, with `parameters` (`phase`, `waited_for` and `is_published`
    are taken). With `is_published` the caller publishes them after the commit; else the scheduler
    does.
    """
    rows = connection.exec_driver_sql(
        f"""
        WITH woken AS (
            UPDATE celeriac.runs SET status = 'queued', phase = resume_phase, resume_phase = NULL,
                wake_at = NULL, last_event_seq = last_event_seq + 1,
                published_at = CASE WHEN %(is_published)s THEN clock_timestamp() END,
                publish_count = %(is_published)s::int
            WHERE status = 'paused' AND phase = %(phase)s AND run_id IN ({chosen})
            RETURNING run_id, step, queue, last_event_seq
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, last_event_seq, 'run.woken',
                jsonb_build_object('waited_for', %(waited_for)s::text)
            FROM woken
        )
        SELECT run_id, step, queue FROM woken
        """,
        {
            **parameters,
            "phase": phase,
            "waited_for": phase.removeprefix("waiting_"),
            "is_published": is_published,
        },
    )
    woken = [Due(*row) for row in rows]
    news.add(connection, *(due.run_id for due in woken))
    return woken
