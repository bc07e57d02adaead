"""The end of a run that nobody works on, and that no step is to come for: it was cancelled, or its
deadline has passed. A step ends its run in its own commit (`steps`).

The caller has locked the run.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import RunId
from celeriac.states import EffectState, RunStatus
from celeriac_storage import approvals, children, news
from celeriac_storage.settling import UNANSWERED, settle


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends, and what its last event says."""

    status: RunStatus
    outcome: str
    facts: dict[str, JsonValue]
    error: dict[str, JsonValue] | None = None


def end(connection: Connection, run_id: RunId, was: RunStatus, ending: Ending) -> None:
    """End the run, which is `was`. What people were asked is over; a call that is in flight is
    `unknown` from now on, and can still be settled. Who started the run is told.
    """
    events = [
        *_settle_calls(connection, run_id),
        {"type": f"run.{ending.status}", "data": ending.facts},
    ]
    approvals.cancel_pending(connection, run_id)
    connection.exec_driver_sql(
        """
        WITH run AS (
            UPDATE celeriac.runs SET status = %(status)s, outcome = %(outcome)s,
                phase = NULL, resume_phase = NULL, wake_at = NULL, error = %(error)s::jsonb,
                cancel_requested_at = CASE WHEN %(status)s = 'cancelled'
                    THEN coalesce(cancel_requested_at, clock_timestamp())
                    ELSE cancel_requested_at END,
                request_version = request_version + 1, finished_at = clock_timestamp(),
                published_at = NULL, publish_count = 0,
                last_event_seq = last_event_seq + jsonb_array_length(%(events)s::jsonb)
            WHERE run_id = %(run_id)s AND status = %(was)s
            RETURNING run_id, last_event_seq
        )
        INSERT INTO celeriac.events (run_id, seq, type, data)
        SELECT run_id, last_event_seq - jsonb_array_length(%(events)s::jsonb) + entry.number,
            entry.value ->> 'type', entry.value -> 'data'
        FROM run, jsonb_array_elements(%(events)s::jsonb) WITH ORDINALITY AS entry (value, number)
        """,
        {
            "run_id": run_id,
            "was": was.value,
            "status": ending.status.value,
            "outcome": ending.outcome,
            "error": None if ending.error is None else dumps(ending.error),
            "events": dumps(events),
        },
    )
    news.add(connection, run_id)
    children.report_end(connection, run_id)


def _settle_calls(connection: Connection, run_id: RunId) -> list[dict[str, JsonValue]]:
    """No step will come to find what a lost worker left in flight, or what another process or
    another run was asked to do, so now it is `unknown`; the events that say so."""
    in_flight = connection.exec_driver_sql(
        """
        SELECT call_id, tool, coalesce(flags ?| '{elsewhere,child}', false) FROM celeriac.effects
        WHERE run_id = %s AND state = 'in_flight' ORDER BY step, call_index
        """,
        (run_id,),
    ).all()
    events: list[dict[str, JsonValue]] = []
    for call_id, tool, is_elsewhere in in_flight:
        error = UNANSWERED if is_elsewhere else _LOST
        settle(
            connection,
            run_id,
            EffectState.IN_FLIGHT,
            EffectState.UNKNOWN,
            call_id=call_id,
            error=error,
            evidence=error,
        )
        told: dict[str, JsonValue] = {"call_id": call_id, "tool": tool, "error": error}
        events.append({"type": "effect.unknown", "data": told})
    return events


_LOST: dict[str, JsonValue] = {
    "kind": "worker_lost",
    "message": "the worker that made the call was lost, and the run ended before anybody found out "
    "what came of it",
}
