"""A tool call's durable record up to the call; `steps` records what came of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.ids import ApprovalId, CallId, RunId
from celeriac.rollback import Rollback
from celeriac.states import EffectKind, EffectState
from celeriac_storage import news
from celeriac_storage.claims import Claim, refusal
from celeriac_storage.database import fetch_row, fetch_rows


@dataclass(frozen=True, slots=True)
class Undone:
    """The call that an effect takes back."""

    run_id: RunId
    call_id: CallId
    kind: Rollback
    result: JsonValue  # what the call returned
    is_in_effect: bool  # committed or known_bad: there is something to take back


@dataclass(frozen=True, slots=True)
class Effect:
    """One tool call as the database knows it."""

    call_id: CallId
    provider_call_id: str
    tool: str
    tool_version: str
    kind: EffectKind
    arguments: JsonValue
    state: EffectState
    attempt: int
    token: str | None  # 32 hex digits: the claim of the latest attempt
    result: JsonValue
    error: dict[str, JsonValue] | None
    is_exclusive: bool = False  # never side by side with another call of the run
    requirement: dict[str, JsonValue] | None = None  # the review it needs; None: it needs none
    is_elsewhere: bool = False  # another process executes it and submits the result
    mutates_workspace: bool = False
    verifies: bool = False
    checks: int = 0  # how often its precondition could not be read
    undoes: Undone | None = None  # it is an undo (`rollbacks.load`)
    is_child: bool = False  # another run answers it
    is_sleep: bool = False  # it waits for a timer
    is_handoff: bool = False  # the answer of that other run ends this one


DOUBTFUL = """(effect.state IN ('in_flight', 'unknown', 'known_bad')
    OR effect.state = 'not_done' AND EXISTS (
        SELECT FROM celeriac.effect_attempts AS entry
        WHERE (entry.run_id, entry.call_id, entry.attempt)
            = (effect.run_id, effect.call_id, effect.attempt) AND entry.outcome = 'committed'))"""
"""Of which a person, or the call's own worker, may say more than is recorded: one that was found to
be not done, and that its worker has told of since, among them. For a query with it as `effect`."""


def load(connection: Connection, run_id: RunId, call_ids: list[CallId]) -> list[Effect]:
    """The effects of these calls, in the order the model asked for them."""
    rows = fetch_rows(
        connection,
        """
        SELECT call_id, provider_call_id, tool, tool_version, kind, arguments, state, attempt,
            token, result, (SELECT convert_from(content, 'UTF8')::jsonb FROM celeriac.artifacts
                WHERE hash = result_artifact), error,
            coalesce(flags ? 'exclusive', false), requirement,
            coalesce(flags ? 'elsewhere', false), coalesce(flags ? 'mutates_workspace', false),
            coalesce(flags ? 'verifies', false), checks, coalesce(flags ? 'child', false),
            coalesce(flags ? 'sleeps', false), coalesce(flags ? 'handoff', false)
        FROM celeriac.effects
        WHERE run_id = %(run_id)s AND call_id = ANY (%(call_ids)s)
        ORDER BY step, call_index
        """,
        {"run_id": run_id, "call_ids": list(call_ids)},
    )
    return [
        Effect(
            call_id, provider_call_id, tool, tool_version, EffectKind(kind), arguments,
            EffectState(state), attempt, None if token is None else token.hex,
            result if artifact is None else artifact, error, is_exclusive, requirement,
            is_elsewhere, mutates_workspace, verifies, checks, None, is_child, is_sleep, is_handoff,
        )
        for (
            call_id, provider_call_id, tool, tool_version, kind, arguments, state, attempt, token,
            result, artifact, error, is_exclusive, requirement, is_elsewhere, mutates_workspace,
            verifies, checks, is_child, is_sleep, is_handoff,
        ) in rows
    ]  # fmt: skip


def begin_transactional(
    connection: Connection, claim: Claim, call_id: CallId, timeout_seconds: float
) -> None:
    """Mark the call as in flight inside the step's own transaction, and bound its statements.

    The mark can never be committed: a deferred trigger refuses a COMMIT while it stands, which is
    how a tool that ends the transaction itself is caught with everything rolled back. Raises
    `Fenced` or `RequestsChanged` if the claim is lost or somebody asked for something.
    """
    row = fetch_row(
        connection,
        """
        UPDATE celeriac.effects SET state = 'in_flight', attempt = attempt + 1, token = %(token)s
        FROM (
            SELECT set_config('statement_timeout', %(timeout)s, true),
                set_config('lock_timeout', %(timeout)s, true)
        ) AS bounded
        WHERE run_id = %(run_id)s AND call_id = %(call_id)s AND state IN ('planned', 'approved')
            AND EXISTS (
                SELECT FROM celeriac.runs AS run
                WHERE run.run_id = %(run_id)s AND step = %(step)s AND claim_token = %(token)s
                    AND request_version = %(request_version)s
            )
        RETURNING attempt
        """,
        {
            **_claimed(claim, call_id),
            "request_version": claim.request_version,
            "timeout": f"{int(timeout_seconds * 1000)}ms",
        },
    )
    if row is None:
        raise refusal(connection, claim)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at an external effect, recorded before the call."""

    attempt: int
    deadline_at: datetime | None  # None: the call is made elsewhere


def begin_attempt(
    connection: Connection,
    claim: Claim,
    call_id: CallId,
    timeout_seconds: float | None,
    approval: tuple[ApprovalId, int] | None = None,
    *,
    event: str = "effect.in_flight",
    follows_doubt: bool = False,
) -> Attempt:
    """Record that the call is about to be made; on which decision, by its id and version.

    Without a timeout it is somebody else who makes it, whenever they like. The run's history tells
    of it as `event`. With `follows_doubt` what came of the attempt before is not known: the target
    does things once per key. A requested call that changes files elsewhere gets a nonce, which its
    receipt must say again. Raises `Fenced` or `RequestsChanged` if the claim is lost or somebody
    asked for something.

    One statement, committed before the call, so that whatever happens in between is found later as
    in flight. It does not advance the step.
    """
    row = fetch_row(
        connection,
        """
        WITH run AS (
            UPDATE celeriac.runs SET last_event_seq = last_event_seq + 1
            WHERE run_id = %(run_id)s AND step = %(step)s AND claim_token = %(token)s
                AND request_version = %(request_version)s
            RETURNING run_id, worker_id, last_event_seq
        ), effect AS (
            UPDATE celeriac.effects AS effect
            SET state = 'in_flight', attempt = attempt + 1, token = %(token)s
            FROM run
            WHERE effect.run_id = run.run_id AND call_id = %(call_id)s
                AND CASE WHEN %(follows_doubt)s THEN state = 'unknown'
                    ELSE state IN ('planned', 'approved', 'not_done') END
            RETURNING effect.run_id, call_id, attempt, tool, flags, worker_id, last_event_seq
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, last_event_seq, %(event)s,
                jsonb_build_object('call_id', call_id, 'tool', tool, 'attempt', attempt)
            FROM effect
        ), attempt AS (
            INSERT INTO celeriac.effect_attempts
                (run_id, call_id, attempt, entry, token, worker_id, outcome, deadline_at,
                approval_id, approval_version, evidence)
            SELECT run_id, call_id, attempt, 0, %(token)s, worker_id, 'started',
                clock_timestamp() + make_interval(secs => %(timeout_seconds)s::float8),
                %(approval_id)s::text, %(approval_version)s::smallint,
                CASE WHEN %(is_elsewhere)s AND flags ? 'mutates_workspace'
                    THEN jsonb_build_object('nonce', gen_random_uuid())
                    WHEN %(follows_doubt)s THEN '{"follows_doubt": true}' END
            FROM effect
            RETURNING attempt, deadline_at
        )
        SELECT attempt, deadline_at,
            celeriac.demand((SELECT count(*) FROM run) = (SELECT count(*) FROM attempt),
                'the effect of this step is not in the state the step found it in')
        FROM run LEFT JOIN attempt ON true
        """,
        {
            **_claimed(claim, call_id),
            "request_version": claim.request_version,
            "timeout_seconds": timeout_seconds,
            "event": event,
            "follows_doubt": follows_doubt,
            "is_elsewhere": event == "call.requested",
            "approval_id": None if approval is None else approval[0],
            "approval_version": None if approval is None else approval[1],
        },
    )
    if row is None:
        raise refusal(connection, claim)
    news.add(connection, claim.run_id)
    return Attempt(row[0], row[1])


def _claimed(claim: Claim, call_id: CallId) -> dict[str, Any]:
    return {
        "run_id": claim.run_id,
        "step": claim.step,
        "token": UUID(claim.token),
        "call_id": call_id,
    }
