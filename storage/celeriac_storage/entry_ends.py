"""The end of an entry of a workflow's log: its run has ended, its time has come, it was told.

In the transaction in which that happens, the entry gets its end and the next number in the order
in which the code learns of them, and the workflow goes on if it waits for nothing else. A turn in
progress learns of it before it commits (`request_version`).

Rows are locked in this order: whatever has ended, the workflow's run, the entry. Whoever has locked
a workflow never waits for a run that it has started (`requests.cancel_children`).
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import CallId, RunId
from celeriac.states import Phase, RunStatus
from celeriac_storage import news, pauses
from celeriac_storage.database import fetch_row
from celeriac_storage.dispatch import Due
from celeriac_storage.entry_ids import entry_of


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an entry: what the run that made it has left, or else a result or an error."""

    made_by: RunId | None = None  # whose use is the workflow's as well
    result: JsonValue = None
    error: dict[str, JsonValue] | None = None


def end_entry(
    connection: Connection,
    workflow: RunId,
    entry_id: CallId,
    outcome: Outcome,
    *,
    is_published: bool = False,
) -> Due | None:
    """Note what came of the entry, once; the workflow's next turn, if it is due by that. With
    `is_published` the caller publishes it. Needs a transaction.

    If the workflow has continued as new since it asked, only the use is added; nothing happens if
    it has ended.
    """
    generation, number = entry_of(entry_id)
    is_failed = outcome.error is not None
    row: Any = fetch_row(
        connection,
        _END,
        {
            "workflow": workflow,
            "generation": generation,
            "number": number,
            "made_by": outcome.made_by,
            "result": None if is_failed or outcome.made_by else dumps(outcome.result),
            "error": None if outcome.error is None else dumps(outcome.error),
            "event": "activity.failed" if is_failed else "activity.completed",
        },
    )
    if row is None:
        return None
    news.add(connection, workflow)
    status, phase, wait_group, _ = row
    if (status, phase) != (RunStatus.PAUSED, Phase.WAITING_ACTIVITY) or wait_group is None:
        return None
    # A statement of its own, under the lock: it sees what has ended meanwhile.
    woken = pauses.wake(
        connection,
        Phase.WAITING_ACTIVITY,
        """
        SELECT %(workflow)s WHERE NOT EXISTS (
            SELECT FROM celeriac.activities
            WHERE run_id = %(workflow)s AND wait_group = %(wait_group)s AND told IS NULL
        )
        """,
        {"workflow": workflow, "wait_group": wait_group},
        is_published=is_published,
    )
    return woken[0] if woken else None


_END = """
WITH made AS (
    SELECT run.step + run.child_steps_used AS steps,
        run.tool_calls_used + run.child_tool_calls_used AS tool_calls,
        run.input_tokens_used + run.output_tokens_used + run.child_tokens_used AS tokens,
        -- An activity's is its call's; only of a refused approval there is none.
        CASE WHEN effect.result_artifact IS NULL THEN coalesce(effect.result, run.result) END
            AS result,
        effect.result_artifact AS artifact
    FROM celeriac.runs AS run LEFT JOIN celeriac.effects AS effect
        ON effect.run_id = run.run_id AND run.kind = 'activity'
    WHERE run.run_id = %(made_by)s::text
), workflow AS (
    UPDATE celeriac.runs AS workflow SET
        -- All of it as the row is when its lock is ours: it may have continued as new till then.
        told = told + (generation = %(generation)s)::int,
        last_event_seq = last_event_seq + (generation = %(generation)s)::int,
        request_version = request_version
            + (generation = %(generation)s AND status = 'running')::int,
        child_steps_used = child_steps_used + coalesce((SELECT steps FROM made), 0),
        child_tool_calls_used = child_tool_calls_used
            + coalesce((SELECT tool_calls FROM made), 0),
        child_tokens_used = child_tokens_used + coalesce((SELECT tokens FROM made), 0)
    WHERE run_id = %(workflow)s AND finished_at IS NULL
    RETURNING run_id, generation, told, last_event_seq, status, phase,
        generation = %(generation)s AS is_asked
), entry AS (
    UPDATE celeriac.activities AS entry SET told = workflow.told - 1, ended_at = clock_timestamp(),
        error = %(error)s::jsonb, result = ended.result, result_artifact = ended.artifact,
        result_hash = sha256(convert_to(ended.result::text, 'UTF8'))
    FROM workflow, (
        SELECT CASE WHEN %(error)s::jsonb IS NULL THEN coalesce(%(result)s::jsonb, made.result) END
                AS result,
            CASE WHEN %(error)s::jsonb IS NULL THEN made.artifact END AS artifact
        FROM (SELECT) AS one LEFT JOIN made ON true
    ) AS ended
    WHERE is_asked AND entry.run_id = workflow.run_id
        AND entry.generation = workflow.generation AND entry.number = %(number)s
    RETURNING entry.kind, entry.name, entry.number, entry.made_by, entry.wait_group
), event AS (
    INSERT INTO celeriac.events (run_id, seq, type, data)
    SELECT run_id, last_event_seq, %(event)s, jsonb_strip_nulls(jsonb_build_object(
        'number', number, 'kind', kind, 'name', name, 'made_by', made_by, 'error',
        %(error)s::jsonb))
    FROM workflow, entry
)
SELECT status, phase, wait_group, celeriac.demand((SELECT count(*) FROM entry) = 1,
    'an entry that has ended is not in the log')
FROM workflow LEFT JOIN entry ON true
WHERE is_asked
"""
