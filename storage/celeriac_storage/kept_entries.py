"""What the log of a retried workflow begins with: all that its origin's log has, but what the code
has failed by and what had not ended.

Numbers are kept, since the code asks for the same again in the same order. So the log has holes,
which the first turn of the retry fills in one commit, or it fills none: code that does not ask for
everything that was kept has diverged. Ends are numbered anew without a gap, in the order that they
had. What was not known to the origin's code to be done comes last: its run ended later, or a person
has found out.

The caller has locked the origin, which has ended.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import CallId, RunId
from celeriac_storage import effects
from celeriac_storage.entry_ids import ENTRY_ID


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the log cannot be gone on from: a run that goes on, or a call of it that is doubtful, or
    a run that has undone something."""

    number: int
    run_id: RunId
    call_id: CallId | None = None
    is_rollback: bool = False


def obstacle(connection: Connection, run_id: RunId) -> Obstacle | None:
    """The first that there is, if any."""
    row: Any = connection.exec_driver_sql(
        f"""
        WITH RECURSIVE {_LOG}, below AS (
            SELECT number, is_kept, run.run_id, run.kind, run.status
            FROM log JOIN celeriac.runs AS run ON run.run_id = made_by
            UNION ALL
            SELECT number, is_kept, run.run_id, run.kind, run.status
            FROM below JOIN celeriac.runs AS run ON run.parent_run_id = below.run_id
        )
        SELECT number, below.run_id, call_id, is_kept
        FROM below LEFT JOIN celeriac.effects AS effect
            ON effect.run_id = below.run_id AND {effects.DOUBTFUL}
        WHERE CASE WHEN is_kept THEN below.kind = 'rollback'
            ELSE status NOT IN ('completed', 'failed', 'cancelled') OR call_id IS NOT NULL END
        ORDER BY number, call_id NULLS LAST LIMIT 1
        """,
        {"origin": run_id},
    ).fetchone()
    if row is None:
        return None
    number, of_run, call, is_kept = row
    return Obstacle(number, of_run, None if is_kept else call, is_rollback=is_kept)


def keep(connection: Connection, origin: RunId, retry: RunId) -> None:
    """Begin the log of the retry, which was created in this transaction. No result leaves the
    database."""
    connection.exec_driver_sql(
        _KEEP,
        {"origin": origin, "retry": retry},
    )


_LOG = """
entry AS MATERIALIZED (
    SELECT entry.*, entry.kind IN ('value', 'version') AS is_answered,
        entry.told IS NOT NULL AND NOT coalesce(
            last.state -> 'because_of' @> to_jsonb(entry.number), false) AS has_ended,
        made.status = 'completed' OR effect.state = 'committed' AS is_done,
        coalesce(made.finished_at, clock_timestamp()) AS done_at,
        CASE WHEN effect.result_artifact IS NULL THEN coalesce(effect.result, made.result) END
            AS done_result,
        effect.result_artifact AS done_artifact
    FROM celeriac.runs AS run JOIN celeriac.activities AS entry USING (run_id, generation)
    LEFT JOIN celeriac.checkpoints AS last
        ON last.run_id = run.run_id AND last.step = run.step - 1 AND last.reason = 'failed'
    LEFT JOIN celeriac.runs AS made ON made.run_id = made_by
    LEFT JOIN celeriac.effects AS effect
        ON effect.run_id = made.run_id AND made.kind = 'activity'
    WHERE run.run_id = %(origin)s
), log AS MATERIALIZED (
    SELECT *, is_answered OR has_ended OR coalesce(is_done, false) AS is_kept FROM entry
)
"""

_KEEP = f"""
WITH {_LOG}, done AS (
    SELECT *, row_number() OVER (
        ORDER BY has_ended DESC, CASE WHEN has_ended THEN told END, done_at, number) - 1 AS place
    FROM log WHERE is_kept AND NOT is_answered
), line AS (
    SELECT number, kind, name, label, arguments, fingerprint, made_by, place,
        CASE WHEN has_ended THEN result ELSE done_result END AS result,
        CASE WHEN has_ended THEN result_hash
            ELSE sha256(convert_to(done_result::text, 'UTF8')) END AS result_hash,
        CASE WHEN has_ended THEN result_artifact ELSE done_artifact END AS result_artifact,
        CASE WHEN has_ended THEN error END AS error,
        asked_at, CASE WHEN has_ended THEN ended_at ELSE done_at END AS ended_at
    FROM done
    UNION ALL
    -- Those at the end that follow a hole may have been asked for because of the failure.
    SELECT number, kind, name, label, arguments, fingerprint, made_by, NULL,
        result, result_hash, result_artifact, NULL, asked_at, NULL
    FROM log CROSS JOIN (
        SELECT min(number) FILTER (WHERE NOT is_kept) AS first_hole,
            max(number) FILTER (WHERE is_kept AND NOT is_answered) AS last_end
        FROM log
    ) AS span
    WHERE is_answered AND (first_hole IS NULL OR number < greatest(first_hole, last_end))
), kept AS (
    INSERT INTO celeriac.activities (run_id, generation, number, kind, name, label, arguments,
        fingerprint, step, made_by, told, result, result_hash, result_artifact, error, asked_at,
        ended_at)
    SELECT %(retry)s, generation, number, line.kind, name, label, arguments, fingerprint, 0,
        made_by, place, line.result, result_hash, result_artifact, line.error, asked_at, ended_at
    FROM line, (SELECT generation FROM celeriac.runs WHERE run_id = %(origin)s) AS origin
), timer AS (
    INSERT INTO celeriac.timers (run_id, timer_id, due_at, created_at, fired_at)
    SELECT %(retry)s, timer_id, due_at, timer.created_at, fired_at
    FROM done AS entry JOIN celeriac.timers AS timer
        ON timer.run_id = %(origin)s AND timer_id = {ENTRY_ID}
    WHERE kind = 'timer'
)
UPDATE celeriac.runs AS retry SET generation = origin.generation,
    generation_input = origin.generation_input, told = (SELECT count(*) FROM done)
FROM celeriac.runs AS origin
WHERE retry.run_id = %(retry)s AND origin.run_id = %(origin)s
"""
