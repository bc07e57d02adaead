"""What is known of an external call whose outcome nobody saw, or saw too late.

Recovery decides from these rows and from what the target says, never from memory.
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import CallId, RunId
from celeriac.states import EffectState
from celeriac_storage.claims import Claim
from celeriac_storage.settling import NEXT_ENTRY


@dataclass(frozen=True, slots=True)
class LostCall:
    """The latest attempt at a call, as recovery finds it."""

    looks: int  # how often its outcome was recorded as unknown
    seconds_until_visible: float
    """Until the call is certainly over and the target shows what it did; 0 or less: now."""
    returned: JsonValue  # what the tool returned, if `has_returned`
    has_returned: bool
    reported: EffectState | None  # what its own worker said, after it had lost its claim
    report: JsonValue  # with `reported`: the result, or the error
    is_retried: bool = False  # with a reported failure: by the tool's policy it is tried again
    seconds_until_deadline: float = 0.0
    """Until the call would have been given up, if its worker had lived; 0 or less: it is over."""
    follows_doubt: bool = False  # what came of the attempts before is not known either


_FIND = """
    SELECT
        count(*) FILTER (WHERE later.outcome = 'unknown'),
        extract(epoch FROM CASE
            -- The process that made the call lives on, and the call came back to it.
            WHEN bool_or(later.evidence ? 'is_over') THEN min(later.at)
            -- Only a session ended: a process that lives takes up its life under a new name, long
            -- before half a lease is over. If none did, what it sent may still be on its way.
            WHEN worker.verdict = 'lifeline' AND NOT EXISTS (
                SELECT FROM celeriac.workers AS successor
                WHERE successor.predecessor = worker.worker_id
            ) THEN least(started.deadline_at,
                worker.dead_at + (worker.lease_until - worker.renewed_at) / 2)
            -- It was silent, is still there, or says goodbye just now: it may be calling until its
            -- deadline.
            ELSE started.deadline_at
        END + make_interval(secs => %(visibility_seconds)s) - clock_timestamp())::float,
        (array_agg(later.evidence -> 'returned') FILTER (WHERE later.evidence ? 'returned'))[1],
        coalesce(bool_or(later.evidence ? 'returned'), false),
        (array_agg(later.outcome) FILTER (WHERE later.outcome IN ('committed', 'failed')))[1],
        (array_agg(later.evidence) FILTER (WHERE later.outcome IN ('committed', 'failed')))[1],
        extract(epoch FROM started.deadline_at - clock_timestamp())::float,
        coalesce(started.evidence ? 'follows_doubt', false)
    FROM celeriac.effect_attempts AS started
    LEFT JOIN celeriac.workers AS worker USING (worker_id)
    LEFT JOIN celeriac.effect_attempts AS later
        ON (later.run_id, later.call_id, later.attempt)
            = (started.run_id, started.call_id, started.attempt) AND later.entry > 0
    WHERE started.run_id = %(run_id)s AND started.call_id = %(call_id)s
        AND started.attempt = %(attempt)s AND started.entry = 0
    GROUP BY started.deadline_at, started.evidence, worker.worker_id
"""


def find(
    connection: Connection,
    run_id: RunId,
    call_id: CallId,
    attempt: int,
    visibility_seconds: float,
) -> LostCall:
    """What the rows say about the attempt, which has begun."""
    row = connection.exec_driver_sql(
        _FIND,
        {
            "run_id": run_id,
            "call_id": call_id,
            "attempt": attempt,
            "visibility_seconds": visibility_seconds,
        },
    ).one()
    looks, seconds, returned, has_returned, reported, evidence, left, follows_doubt = row
    state = None if reported is None else EffectState(reported)
    report, is_retried = None, False
    if state is EffectState.COMMITTED:
        report = evidence["result"]
    elif state is EffectState.FAILED:
        report, is_retried = evidence["error"], "is_retried" in evidence
    return LostCall(
        looks, seconds, returned, has_returned, state, report, is_retried, left, follows_doubt
    )


def report(
    connection: Connection,
    claim: Claim,
    call_id: CallId,
    outcome: EffectState,
    evidence: dict[str, JsonValue],
) -> bool:
    """Note what came of the attempt made under this claim, which is lost meanwhile; whether there
    is such an attempt. Needs a transaction, and locks the run first, as all do that write about its
    calls.

    Facts only: no run and no effect moves. Whoever recovers the call finds the note; a run that
    waits for a person because of it has to be woken (`resolving.go_on_with_report`). Of a run that
    is erased only the outcome is noted, not what the call returned.
    """
    connection.exec_driver_sql(
        "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (claim.run_id,)
    )
    # Somebody may be finding out just now, without the note: its commit must miss and look again.
    connection.exec_driver_sql(
        "UPDATE celeriac.runs SET request_version = request_version + 1"
        " WHERE run_id = %s AND status = 'running'",
        (claim.run_id,),
    )
    row = connection.exec_driver_sql(
        f"""
        INSERT INTO celeriac.effect_attempts
            (run_id, call_id, attempt, entry, token, worker_id, outcome, evidence)
        SELECT run_id, call_id, attempt, {NEXT_ENTRY}, token, worker_id, %(outcome)s,
            CASE WHEN EXISTS (
                SELECT FROM celeriac.runs WHERE runs.run_id = effect.run_id AND erased_at IS NULL
            ) THEN %(evidence)s::jsonb END
        FROM celeriac.effect_attempts AS effect
        WHERE run_id = %(run_id)s AND call_id = %(call_id)s AND entry = 0 AND token = %(token)s
        RETURNING entry
        """,
        {
            "run_id": claim.run_id,
            "call_id": call_id,
            "token": UUID(claim.token),
            "outcome": outcome.value,
            "evidence": dumps(evidence),
        },
    ).fetchone()
    return row is not None
