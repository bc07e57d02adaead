"""Settling a call outside of any step: by a person, or because no step will come.

A step settles its own calls in its commit (`steps`). The caller has locked the run.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import CallId, RunId
from celeriac.states import EffectState
from celeriac_storage import artifacts

NEXT_ENTRY = """(
    SELECT max(earlier.entry) + 1 FROM celeriac.effect_attempts AS earlier
    WHERE (earlier.run_id, earlier.call_id, earlier.attempt)
        = (effect.run_id, effect.call_id, effect.attempt)
)"""
"""The number of the next entry about the latest attempt of the call that is named `effect`."""

UNANSWERED: dict[str, JsonValue] = {
    "kind": "cancelled",
    "message": "the run ended before the result of this call came in",
}
"""The error of a call that another process, or another run, was to answer."""


def settle(
    connection: Connection,
    run_id: RunId,
    was: EffectState,
    state: EffectState,
    *,
    evidence: JsonValue,
    call_id: CallId | None = None,
    result: JsonValue = None,
    error: dict[str, JsonValue] | None = None,
) -> Sequence[tuple[CallId, str]]:
    """Move the run's call, or without `call_id` each of its calls, from state `was` to `state`, and
    add what is known now, and from where (`evidence`), to its attempt; call and tool of each.

    `result` goes with `committed` and with nothing else.
    """
    parameters: dict[str, Any] = {
        "run_id": run_id,
        "call_id": call_id,
        "was": was.value,
        "state": state.value,
        "result": None,
        "artifact": None,
        "error": None if error is None else dumps(error),
        "evidence": dumps(evidence),
    }
    if state is EffectState.COMMITTED:
        text = dumps(result)
        if artifacts.is_large(text):
            parameters["artifact"] = artifacts.store(connection, text)
        else:
            parameters["result"] = text
    rows: Sequence[Any] = connection.exec_driver_sql(
        f"""
        WITH effect AS (
            UPDATE celeriac.effects SET state = %(state)s, error = %(error)s::jsonb,
                result = %(result)s::jsonb,
                result_hash = sha256(convert_to(%(result)s::jsonb::text, 'UTF8')),
                result_artifact = %(artifact)s::bytea,
                settled_at = CASE WHEN %(state)s NOT IN ('not_done', 'unknown')
                    THEN clock_timestamp() END
            WHERE run_id = %(run_id)s AND state = %(was)s
                AND call_id = coalesce(%(call_id)s::text, call_id)
            RETURNING run_id, call_id, attempt, tool, kind
        ), entry AS (
            INSERT INTO celeriac.effect_attempts
                (run_id, call_id, attempt, entry, outcome, evidence)
            SELECT run_id, call_id, attempt, {NEXT_ENTRY},
                CASE %(state)s WHEN 'rolled_back' THEN 'known_bad' ELSE %(state)s END,
                %(evidence)s::jsonb
            FROM effect
            -- No other has attempts, nor has an undo that a person has made before anybody tried.
            WHERE kind = 'external' AND attempt > 0
        )
        SELECT call_id, tool FROM effect ORDER BY call_id
        """,
        parameters,
    ).fetchall()
    return [(CallId(call_id), tool) for call_id, tool in rows]
