"""Taking a queued step, and giving it back.

`claim` is one statement on an autocommit connection. It alone may commit asynchronously: a crash of
Postgres can forget it, and then the run is queued again while this worker still works. The random
token makes that harmless: whoever claims next writes another one, and only its holder commits.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.errors import CeleriacError, Fenced
from celeriac.ids import (
    ClaimToken,
    RunId,
    TenantId,
    ThreadId,
    UserId,
    WorkerId,
    new_claim_token,
)
from celeriac.limits import Use
from celeriac.states import Phase, RunKind
from celeriac_storage import news
from celeriac_storage.budget_limits import HAS_BUDGETS
from celeriac_storage.database import fetch_row
from celeriac_storage.requests import cancel_as_asked

CHECKPOINT_SCHEMA_VERSION = 1
"""Of the checkpoints that this code writes. It reads no newer ones: their runs stay queued."""

STRIKES_BEFORE_ISOLATION = 2
"""After so many strikes a run is claimed only by a worker with nothing else running."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to commit one step of a run, and what the step starts from."""

    run_id: RunId
    step: int
    token: ClaimToken
    worker_id: WorkerId
    epoch: int
    phase: Phase
    agent: str
    agent_hash: str | None
    tenant_id: TenantId
    user_id: UserId
    thread_id: ThreadId
    thread_position: int | None
    queue: str
    state: dict[str, JsonValue]  # of the latest checkpoint; empty before the first
    message_count: int
    request_version: int  # the requests (cancel …) this step knows of
    is_cancel_requested: bool
    is_interrupt_requested: bool
    is_interrupt_answered: bool  # the user has said something after it
    said: int  # how many of the user's words wait in the inbox
    failed_thinks: int
    tool_calls_used: int
    input_tokens_used: int
    output_tokens_used: int
    limits: dict[str, JsonValue]
    input: JsonValue
    working_since: datetime  # the run's first claim, moved on by the time it has been paused
    step_started_at: datetime
    kind: RunKind = RunKind.AGENT
    is_overdue: bool = False  # its deadline has passed
    deadline_at: datetime | None = None
    is_child: bool = False  # another run waits for its end
    depth: int = 0  # how many runs stand above it
    parent_run_id: RunId | None = None
    history_until: int | None = None  # of a hand-off: it goes on from so many of its parent's
    children_started: int = 0
    child_use: Use = field(default_factory=Use)  # of its children that have ended
    contract: dict[str, JsonValue] | None = None  # to be met before the run completes
    traceparent: str | None = None  # of whoever started it
    is_budgeted: bool = False  # what it uses is counted, and may be refused
    selection: dict[str, JsonValue] | None = None  # that an attempt before has perhaps sent
    generation: int = 0  # of a workflow: how often it has continued as new

    @property
    def is_rollback(self) -> bool:
        """Whether no model is asked: what another run did is undone."""
        return self.kind is RunKind.ROLLBACK

    @property
    def is_activity(self) -> bool:
        """Whether one call of a tool is all that there is to it."""
        return self.kind is RunKind.ACTIVITY


_REQUESTS = """
    request_version, cancel_requested_at IS NOT NULL, interrupt_requested_at IS NOT NULL,
    (last_said_at > interrupt_requested_at) IS TRUE, words_waiting,
    (deadline_at <= clock_timestamp()) IS TRUE
"""
"""What was asked of a run: from its own row alone, which the same lock keeps as it is."""

_CLAIM = f"""
UPDATE celeriac.runs AS run SET
    status = 'running',
    worker_id = %(worker_id)s,
    claim_token = %(token)s,
    epoch = epoch + 1,
    step_started_at = clock_timestamp(),
    step_deadline = clock_timestamp()
        + make_interval(secs => (%(deadlines)s::jsonb ->> agent)::double precision),
    started_at = coalesce(started_at, clock_timestamp())
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS unsynced
LEFT JOIN (
    SELECT state, schema_version FROM celeriac.checkpoints
    WHERE run_id = %(run_id)s AND step = %(step)s - 1
) AS last ON true
WHERE run_id = %(run_id)s AND step = %(step)s AND status = 'queued'
    AND %(deadlines)s::jsonb ? agent AND (strikes < %(isolation)s OR %(is_alone)s)
    -- What newer code has left may mean something else here.
    AND coalesce(last.schema_version, 0) <= %(schema_version)s
    -- What a dead worker claimed would be taken from it again at once, with a strike.
    AND EXISTS (
        SELECT FROM celeriac.workers
        WHERE worker_id = %(worker_id)s AND dead_at IS NULL AND stopped_at IS NULL
    )
RETURNING
    epoch, phase, agent, agent_hash, tenant_id, user_id, thread_id, thread_position, queue,
    state, message_count, {_REQUESTS}, failed_thinks,
    tool_calls_used, input_tokens_used, output_tokens_used, limits,
    CASE WHEN run.step = 0 THEN input END, started_at + waited, step_started_at,
    kind, deadline_at, parent_call_id IS NOT NULL, depth, parent_run_id,
    history_until, children_started, child_steps_used, child_tool_calls_used, child_tokens_used,
    contract, traceparent, {HAS_BUDGETS},
    CASE WHEN phase = 'waiting_model' THEN (SELECT selection FROM celeriac.selections AS kept
        WHERE kept.run_id = run.run_id AND kept.step = run.step) END, coalesce(generation, 0)
"""


def claim(
    connection: Connection,
    run_id: RunId,
    step: int,
    *,
    worker_id: WorkerId,
    deadlines: Mapping[str, float],
    is_alone: bool,
    token: ClaimToken | None = None,
) -> Claim | None:
    """Claim exactly this step if it is queued; None if it is not, which drops a stale message, for
    a worker that is not registered, was declared dead or has left, and if newer code left the
    latest checkpoint.

    `deadlines` has the agents of this worker, each with the seconds that one of its steps may take.
    `is_alone` says that this worker runs nothing else, which a run with strikes asks for. A worker
    that gives the `token` itself can find a claim again whose answer it never got (`release_lost`).
    """
    token = token or new_claim_token()
    row = fetch_row(
        connection,
        _CLAIM,
        {
            "worker_id": worker_id,
            "token": UUID(token),
            "deadlines": dumps(dict(deadlines)),
            "run_id": run_id,
            "step": step,
            "isolation": STRIKES_BEFORE_ISOLATION,
            "is_alone": is_alone,
            "schema_version": CHECKPOINT_SCHEMA_VERSION,
        },
    )
    if row is None:
        return None
    (
        epoch, phase, agent, agent_hash, tenant_id, user_id, thread_id, thread_position, queue,
        state, message_count, request_version, is_cancel_requested, is_interrupt_requested,
        is_interrupt_answered, said, is_overdue, failed_thinks,
        tool_calls_used, input_tokens_used, output_tokens_used, limits,
        input_, working_since, step_started_at, kind, deadline_at, is_child, depth,
        parent_run_id, history_until, children_started, child_steps, child_tool_calls,
        child_tokens, contract, traceparent, is_budgeted, selection, generation,
    ) = row  # fmt: skip
    return Claim(
        run_id, step, token, worker_id, epoch, Phase(phase), agent, agent_hash, tenant_id, user_id,
        thread_id, thread_position, queue, state or {}, message_count, request_version,
        is_cancel_requested, is_interrupt_requested, is_interrupt_answered, said, failed_thinks,
        tool_calls_used, input_tokens_used, output_tokens_used, limits, input_, working_since,
        step_started_at, RunKind(kind), is_overdue, deadline_at, is_child, depth, parent_run_id,
        history_until, children_started,
        Use(child_steps, child_tool_calls, input_tokens=child_tokens), contract, traceparent,
        is_budgeted, selection, generation,
    )  # fmt: skip


def tokens_held(connection: Connection, worker_id: WorkerId) -> set[ClaimToken]:
    """The tokens of all steps that the database says this worker has."""
    rows = connection.exec_driver_sql(
        "SELECT claim_token FROM celeriac.runs WHERE worker_id = %s AND status = 'running'",
        (worker_id,),
    )
    return {ClaimToken(row[0].hex) for row in rows}


def release_lost(
    connection: Connection, worker_id: WorkerId, tokens: Collection[ClaimToken]
) -> int:
    """Queue the steps that this worker has claimed with these tokens and does not know of; how many
    there were. The answer to a claim, or to a commit that kept one, can get lost on its way.
    """
    return connection.exec_driver_sql(
        """
        UPDATE celeriac.runs
        SET status = 'queued', claim_token = NULL, step_deadline = NULL,
            published_at = NULL, publish_count = 0
        WHERE worker_id = %s AND status = 'running' AND claim_token = ANY (%s)
        """,
        (worker_id, [UUID(token) for token in tokens]),
    ).rowcount


STRIKES_BEFORE_ATTENTION = 3
"""After so many strikes nobody claims a run any more until a person has looked."""


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """Why a step could not be claimed."""

    is_queued_here: bool  # queued at exactly this step
    needs_isolation: bool
    agent: str
    newer_schema: int | None = None  # of the latest checkpoint, if this code cannot read it


def why_unclaimed(connection: Connection, run_id: RunId, step: int) -> Unclaimed | None:
    """What stands in the way of a claim, or None if there is no such run."""
    row = connection.exec_driver_sql(
        """
        SELECT status = 'queued' AND step = %s, strikes >= %s, agent,
            (SELECT schema_version FROM celeriac.checkpoints AS last
                WHERE last.run_id = run.run_id AND last.step = run.step - 1
                    AND schema_version > %s)
        FROM celeriac.runs AS run WHERE run_id = %s
        """,
        (step, STRIKES_BEFORE_ISOLATION, CHECKPOINT_SCHEMA_VERSION, run_id),
    ).fetchone()
    return None if row is None else Unclaimed(*row)


def release(connection: Connection, claim: Claim) -> bool:
    """Give the step back unchanged, so that any worker may claim it at once.

    False if the claim no longer held it. The caller publishes the step.
    """
    row = connection.exec_driver_sql(
        """
        UPDATE celeriac.runs
        SET status = 'queued', claim_token = NULL, step_deadline = NULL,
            published_at = clock_timestamp(), publish_count = 1
        WHERE run_id = %(run_id)s AND step = %(step)s AND claim_token = %(token)s
            AND status = 'running'
        RETURNING run_id
        """,
        _fence(claim),
    ).fetchone()
    return row is not None


def stumble(connection: Connection, claim: Claim, error: dict[str, JsonValue]) -> bool:
    """Give the step back with a strike, because our own code failed in it; the third one puts the
    run before a person. True if the step is queued again, and then the caller publishes it.
    """
    row = connection.exec_driver_sql(
        """
        WITH run AS (
            UPDATE celeriac.runs SET
                status = CASE WHEN strikes + 1 < %(limit)s THEN 'queued'
                    ELSE 'needs_attention' END,
                error = CASE WHEN strikes + 1 < %(limit)s THEN error ELSE %(error)s::jsonb END,
                strikes = strikes + 1, claim_token = NULL, step_deadline = NULL,
                published_at = clock_timestamp(), publish_count = 1,
                last_event_seq = last_event_seq + 1
            WHERE run_id = %(run_id)s AND step = %(step)s AND claim_token = %(token)s
                AND status = 'running'
            RETURNING run_id, status, step, epoch, last_event_seq
        ), event AS (
            INSERT INTO celeriac.events (run_id, seq, type, data)
            SELECT run_id, last_event_seq, CASE status WHEN 'queued' THEN 'run.stumbled'
                ELSE 'run.needs_attention' END, jsonb_build_object('step', step, 'epoch', epoch,
                'error', %(error)s::jsonb)
            FROM run
        )
        SELECT status = 'queued' FROM run
        """,
        {**_fence(claim), "limit": STRIKES_BEFORE_ATTENTION, "error": dumps(error)},
    ).fetchone()
    if row is None:
        return False
    news.add(connection, claim.run_id)
    if not row[0]:
        cancel_as_asked(connection, [claim.run_id])
    return bool(row[0])


def _fence(claim: Claim) -> dict[str, Any]:
    return {"run_id": claim.run_id, "step": claim.step, "token": UUID(claim.token)}


class RequestsChanged(Exception):
    """Somebody asked for something since the claim. `claim` is the claim that knows of it."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(f"run {claim.run_id} was asked for something during step {claim.step}")
        self.claim = claim


def refusal(connection: Connection, claim: Claim) -> Exception:
    """Why a statement fenced on this claim moved nothing: `Fenced` or `RequestsChanged`; if it is
    neither, a bug."""
    row = connection.exec_driver_sql(
        f"SELECT status, step, claim_token, {_REQUESTS} FROM celeriac.runs AS run"
        " WHERE run_id = %s FOR UPDATE",
        (claim.run_id,),
    ).fetchone()
    if row is None:  # the database was put back to a time before the run, say
        return Fenced(f"there is no run {claim.run_id}, so nothing of this attempt was written")
    (
        status, step, token, request_version, is_cancelled, is_interrupted, is_answered, said,
        is_overdue,
    ) = row  # fmt: skip
    if (step, token) == (claim.step, UUID(claim.token)):
        if request_version == claim.request_version:
            return CeleriacError(
                f"run {claim.run_id}: step {claim.step} is ours, but an effect of it is not in the "
                "state the step found it in"
            )
        return RequestsChanged(
            replace(
                claim,
                request_version=request_version,
                is_cancel_requested=is_cancelled,
                is_interrupt_requested=is_interrupted,
                is_interrupt_answered=is_answered,
                said=said,
                is_overdue=is_overdue,
            )
        )
    return Fenced(
        f"run {claim.run_id}: this worker's claim of step {claim.step} (epoch {claim.epoch}) is "
        f"over; the run is {status} at step {step}, and nothing of this attempt was written"
    )
