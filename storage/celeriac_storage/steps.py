"""The commit of a step: one statement that writes all of it, or nothing if the claim is lost.

The statement begins with an update of the run's row that names the step, the token and the requests
this step knows of. It takes the row's lock; everything else is inserted from what that update
returns, so a fenced worker inserts nothing, and no second check can disagree with the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import CallId
from celeriac.states import EffectKind, EffectState, Phase, RunStatus, StepKind
from celeriac_storage import approvals
from celeriac_storage.approvals import Proposal
from celeriac_storage.claims import Claim, refusal
from celeriac_storage.database import fetch_row
from celeriac_storage.settling import NEXT_ENTRY
from celeriac_storage.threads import wake_next_of_thread

CHECKPOINT_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Next:
    """Where a step leaves its run."""

    status: RunStatus
    phase: Phase | None = None
    resume_phase: Phase | None = None  # for a pause: the phase it goes back to
    outcome: str | None = None
    result: JsonValue = None  # only for `completed`, which always has one
    error: dict[str, JsonValue] | None = None
    wake_after_seconds: float | None = None

    @property
    def releases_thread(self) -> bool:
        """Whether the next run of the thread may go: this one ended or waits for a person."""
        return (
            self.status.is_terminal
            or self.status is RunStatus.NEEDS_ATTENTION
            or self.phase in (Phase.WAITING_APPROVAL, Phase.WAITING_USER)
        )

    @property
    def asks_model_next(self) -> bool:
        """Whether a word of the user's may follow now: the model has no calls to be told of."""
        is_asked = (self.status, self.phase) == (RunStatus.QUEUED, Phase.WAITING_MODEL)
        return is_asked or self.status is RunStatus.COMPLETED

    @classmethod
    def queued(cls, phase: Phase) -> "Next":
        return cls(RunStatus.QUEUED, phase)

    @classmethod
    def waiting_for_user(cls, resume_phase: Phase) -> "Next":
        """Interrupted: until the user says something."""
        return cls(RunStatus.PAUSED, Phase.WAITING_USER, resume_phase=resume_phase)

    @classmethod
    def failed(cls, outcome: str, error: dict[str, JsonValue]) -> "Next":
        return cls(RunStatus.FAILED, outcome=outcome, error=error)

    @classmethod
    def needs_attention(cls, phase: Phase, error: dict[str, JsonValue]) -> "Next":
        return cls(RunStatus.NEEDS_ATTENTION, phase, error=error)

    @classmethod
    def cancelled(cls) -> "Next":
        return cls(RunStatus.CANCELLED, outcome="cancelled")


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the run's history: a type such as `effect.committed`, and ids and facts."""

    type: str
    data: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Message:
    """A line of the conversation; role `results` holds call ids, since effects hold the results."""

    role: str
    body: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class PlannedEffect:
    """A tool call that the model asked for, as validated; or `invalid`, with what is wrong."""

    call_id: CallId
    call_index: int
    provider_call_id: str
    tool: str
    tool_version: str
    kind: EffectKind
    arguments: JsonValue
    state: EffectState = EffectState.PLANNED
    error: dict[str, JsonValue] | None = None
    flags: dict[str, JsonValue] | None = None
    requirement: dict[str, JsonValue] | None = None  # the review it needs


@dataclass(frozen=True, slots=True)
class SettledEffect:
    """What became of a tool call. `was` is the state that the update expects to find."""

    call_id: CallId
    was: EffectState
    state: EffectState
    result: JsonValue = None
    result_artifact: bytes | None = None
    error: dict[str, JsonValue] | None = None
    is_attempt: bool = False  # whether this ends an attempt that has rows of its own
    evidence: dict[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to a model, answered or not."""

    attempt: int
    model: str
    message_count: int
    outcome: str
    started_at: datetime
    input_tokens: int = 0
    output_tokens: int = 0
    usage: dict[str, JsonValue] | None = None
    error: dict[str, JsonValue] | None = None
    prompt_hash: str | None = None  # these two only if they are not the run's own
    tools_hash: str | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Everything a step leaves behind. With `advances` false it is an attempt that did not get
    there: the run stays at this step and no checkpoint is written."""

    next: Next
    kind: StepKind
    reason: str
    advances: bool = True
    state: dict[str, JsonValue] = field(default_factory=dict)
    messages: Sequence[Message] = ()
    events: Sequence[Event] = ()
    planned: Sequence[PlannedEffect] = ()
    proposed: Sequence[Proposal] = ()  # of calls in `planned`, or without that, of earlier ones
    settled: Sequence[SettledEffect] = ()
    model_call: ModelCall | None = None
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    failed_thinks: int = 0
    hears: bool = False  # the words that the claim knows of become messages, after its own
    ends_interrupt: bool = False
    agent_hash: str | None = None
    tools_hash: str | None = None
    prompt_hash: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Where the run now stands."""

    step: int
    status: RunStatus
    committed_at: datetime
    last_event_seq: int


FENCE = "claim_token = %(token)s"

_RUN = """
WITH run AS (
    UPDATE celeriac.runs SET
        step = step + %(advance)s,
        status = %(status)s, phase = %(phase)s, resume_phase = %(resume_phase)s,
        outcome = %(outcome)s, result = %(result)s::jsonb, error = %(error)s::jsonb,
        claim_token = CASE WHEN %(keeps_claim)s THEN claim_token END,
        step_started_at = CASE WHEN %(keeps_claim)s THEN clock_timestamp() END,
        step_deadline = CASE WHEN %(keeps_claim)s
            THEN clock_timestamp() + make_interval(secs => %(deadline_seconds)s) END,
        wake_at = clock_timestamp() + make_interval(secs => %(wake_after_seconds)s),
        published_at = CASE WHEN %(status)s = 'queued' THEN clock_timestamp() END,
        publish_count = CASE WHEN %(status)s = 'queued' THEN 1 ELSE 0 END,
        strikes = CASE WHEN %(advance)s = 1 THEN 0 ELSE strikes END,
        failed_thinks = %(failed_thinks)s,
        agent_hash = coalesce(agent_hash, %(agent_hash)s),
        tools_hash = coalesce(tools_hash, %(tools_hash)s),
        prompt_hash = coalesce(prompt_hash, %(prompt_hash)s),
        message_count = message_count + %(messages_added)s,{more}
        last_event_seq = last_event_seq + %(events_added)s,
        tool_calls_used = tool_calls_used + %(tool_calls)s,
        input_tokens_used = input_tokens_used + %(input_tokens)s,
        output_tokens_used = output_tokens_used + %(output_tokens)s,
        finished_at = CASE WHEN %(is_terminal)s THEN clock_timestamp() END
    WHERE run_id = %(run_id)s AND step = %(step)s AND status = 'running' AND {fence}
        AND request_version = %(request_version)s
    RETURNING run_id, step, status, message_count, last_event_seq, worker_id, epoch,
        clock_timestamp() AS committed_at
)"""

_CHECKPOINT = """, checkpoint AS (
    INSERT INTO celeriac.checkpoints (run_id, step, kind, reason, state, hash, message_count,
        schema_version, worker_id, epoch, started_at, committed_at)
    SELECT run_id, %(step)s, %(kind)s, %(reason)s, %(state)s::jsonb,
        sha256(convert_to(%(state)s::jsonb::text, 'UTF8')), message_count,
        %(schema_version)s, worker_id, epoch, %(started_at)s, committed_at
    FROM run
)"""

_MESSAGES = """, message AS (
    INSERT INTO celeriac.messages (run_id, position, role, body, hash)
    SELECT run_id, message_count - %(messages_added)s + entry.number - 1, entry.value ->> 'role',
        entry.value -> 'body', sha256(convert_to((entry.value -> 'body')::text, 'UTF8'))
    FROM run, jsonb_array_elements(%(messages)s::jsonb) WITH ORDINALITY AS entry (value, number)
)"""

# The inbox holds as many words as the claim knows of, or the run's row would have moved on.
_HEARD = """, heard AS (
    UPDATE celeriac.inbox SET drained_step = %(step)s
    FROM run WHERE inbox.run_id = run.run_id AND drained_step IS NULL
    RETURNING inbox_id, body
), word AS (
    INSERT INTO celeriac.messages (run_id, position, role, body, hash)
    SELECT run_id, message_count - %(words)s + row_number() OVER (ORDER BY inbox_id) - 1, 'user',
        body, sha256(convert_to(body::text, 'UTF8'))
    FROM run, heard
)"""

_EVENTS = """, event AS (
    INSERT INTO celeriac.events (run_id, seq, type, data)
    SELECT run_id, last_event_seq - %(events_added)s + entry.number,
        entry.value ->> 'type', entry.value -> 'data'
    FROM run, jsonb_array_elements(%(events)s::jsonb) WITH ORDINALITY AS entry (value, number)
)"""

_PLANNED = """, planned AS (
    INSERT INTO celeriac.effects (run_id, call_id, step, call_index, provider_call_id, tool,
        tool_version, kind, flags, arguments, fingerprint, state, error, requirement, settled_at)
    SELECT run_id, entry.call_id, %(step)s, entry.call_index, entry.provider_call_id, entry.tool,
        entry.tool_version, entry.kind, entry.flags, entry.arguments,
        sha256(convert_to(
            concat_ws(E'\\n', entry.tool, entry.tool_version, entry.arguments::text), 'UTF8')),
        entry.state, entry.error, entry.requirement,
        CASE WHEN entry.state = 'invalid' THEN committed_at END
    FROM run, jsonb_to_recordset(%(planned)s::jsonb) AS entry (call_id text, call_index smallint,
        provider_call_id text, tool text, tool_version text, kind text, flags jsonb,
        arguments jsonb, state text, error jsonb, requirement jsonb)
    RETURNING run_id, call_id, version, tool, tool_version, arguments, fingerprint
)"""

# A call whose decision was revoked is proposed again, as the next version of itself.
_PLANNED_BEFORE = """, planned AS (
    UPDATE celeriac.effects AS effect SET state = 'proposed', version = version + 1,
        requirement = entry.requirement
    FROM run, jsonb_to_recordset(%(proposed)s::jsonb) AS entry (call_id text, requirement jsonb)
    WHERE effect.run_id = run.run_id AND effect.call_id = entry.call_id
        AND effect.state = 'planned'
    RETURNING effect.run_id, effect.call_id, version, tool, tool_version, arguments, fingerprint
)"""

_PROPOSED = ", proposal AS (" + approvals.INSERT.format(effects="planned") + " RETURNING 1)"

# The run ends, and with it what waits for people; nobody has decided about it.
_CANCELLED = """, cancelled AS (
    UPDATE celeriac.approvals SET status = 'cancelled'
    FROM run WHERE approvals.run_id = run.run_id AND approvals.status = 'pending'
)"""

# The user has interrupted the run: what people were asked about calls that nobody makes is over.
_WITHDRAWN = """, withdrawn AS (
    UPDATE celeriac.approvals AS approval SET
        status = CASE approval.status WHEN 'pending' THEN 'cancelled' ELSE 'revoked' END,
        revoked_because = CASE approval.status WHEN 'approved' THEN 'the run was interrupted' END
    FROM run, jsonb_to_recordset(%(settled)s::jsonb) AS entry (call_id text, state text)
    WHERE approval.run_id = run.run_id AND approval.call_id = entry.call_id
        AND entry.state = 'rejected' AND approval.status IN ('pending', 'approved')
)"""

# The result is taken from `value` itself: as a column of the record, a JSON null would become an
# SQL NULL, and a committed effect has a result.
_SETTLED = """, settled AS (
    UPDATE celeriac.effects AS effect SET
        state = entry.state, result = value -> 'result',
        result_hash = sha256(convert_to((value -> 'result')::text, 'UTF8')),
        result_artifact = decode(entry.result_artifact, 'hex'), error = entry.error,
        attempt = attempt + (entry.was IN ('planned', 'approved')
            AND entry.state NOT IN ('invalid', 'rejected'))::int,
        token = %(token)s,
        settled_at = CASE WHEN entry.state NOT IN ('planned', 'approved', 'not_done', 'unknown')
            THEN committed_at END
    FROM run, jsonb_array_elements(%(settled)s::jsonb) AS value,
        jsonb_to_record(value) AS entry (call_id text, was text, state text, result_artifact text,
            error jsonb)
    WHERE effect.run_id = run.run_id AND effect.call_id = entry.call_id
        AND effect.state = entry.was
    RETURNING effect.call_id
)"""

_ATTEMPTS = f""", attempt AS (
    INSERT INTO celeriac.effect_attempts (run_id, call_id, attempt, entry, token, worker_id,
        outcome, evidence)
    SELECT run.run_id, effect.call_id, effect.attempt, {NEXT_ENTRY}, %(token)s, run.worker_id,
        entry.state, entry.evidence
    FROM run, jsonb_to_recordset(%(settled)s::jsonb)
        AS entry (call_id text, state text, is_attempt boolean, evidence jsonb)
    JOIN celeriac.effects AS effect USING (call_id)
    WHERE effect.run_id = run.run_id AND entry.is_attempt
)"""

_MODEL_CALL = """, model_call AS (
    INSERT INTO celeriac.model_calls (run_id, step, attempt, model, message_count, outcome, error,
        input_tokens, output_tokens, usage, prompt_hash, tools_hash, started_at)
    SELECT run_id, %(step)s, %(model_attempt)s, %(model)s, %(model_messages)s, %(model_outcome)s,
        %(model_error)s::jsonb, %(input_tokens)s, %(output_tokens)s, %(usage)s::jsonb,
        %(call_prompt_hash)s, %(call_tools_hash)s, %(model_started_at)s
    FROM run
)"""

_END = """
SELECT step, status, committed_at, last_event_seq{checks} FROM run
"""

# Under our claim nobody else moves an effect; if one is not in the state we saw, stop everything.
_SETTLED_CHECK = """,
    celeriac.demand((SELECT count(*) FROM settled) = %(settled_count)s,
        'an effect of this step is not in the state the step found it in')"""

_HEARD_CHECK = """,
    celeriac.demand((SELECT count(*) FROM heard) = %(words)s,
        'the inbox does not hold what the run says')"""

_PROPOSED_CHECK = """,
    celeriac.demand((SELECT count(*) FROM proposal) = %(proposed_count)s,
        'a call that this step proposes is not in the state the step found it in')"""


def commit(
    connection: Connection,
    claim: Claim,
    record: StepRecord,
    *,
    keep_claim_seconds: float | None = None,
) -> Committed:
    """Commit the step. With `keep_claim_seconds` the claim goes on to the next step, which has that
    long; the run is then `running` instead of `queued`.

    Raises `Fenced` if the claim no longer holds the step, and `RequestsChanged` if somebody asked
    for something (cancel …) since the claim; nothing is written in either case. A step that
    releases its thread needs a transaction around it, because it wakes the next run; others do not.
    """
    row = fetch_row(
        connection,
        _statement(
            FENCE,
            record.advances,
            bool(record.messages),
            record.hears,
            record.ends_interrupt,
            bool(record.events) or record.hears or record.next.status is not RunStatus.QUEUED,
            bool(record.planned),
            bool(record.proposed),
            record.next.status.is_terminal and claim.phase is Phase.WAITING_TOOL,
            any(effect.state is EffectState.REJECTED for effect in record.settled),
            bool(record.settled),
            any(effect.is_attempt for effect in record.settled),
            record.model_call is not None,
        ),
        _parameters(claim, record, keep_claim_seconds),
    )
    if row is None:
        raise refusal(connection, claim)
    committed = Committed(row[0], RunStatus(row[1]), row[2], row[3])
    if record.next.releases_thread:
        wake_next_of_thread(connection, claim.tenant_id, claim.thread_id)
    return committed


@cache
def _statement(
    fence: str,
    checkpoint: bool,
    messages: bool,
    heard: bool,
    interrupted: bool,
    events: bool,
    planned: bool,
    proposed: bool,
    cancelled: bool,
    withdrawn: bool,
    settled: bool,
    attempts: bool,
    model_call: bool,
) -> str:
    """Only the parts that this kind of step writes: each table opened costs a few microseconds.

    Packed: psycopg keeps what it parsed only of statements up to 4,096 characters, and parsing
    costs a quarter of a millisecond.
    """
    statement = (
        _RUN.format(
            fence=fence,
            more=" words_waiting = 0," * heard + " interrupt_requested_at = NULL," * interrupted,
        )
        + _CHECKPOINT * checkpoint
        + _MESSAGES * messages
        + _HEARD * heard
        + _EVENTS * events
        + _PLANNED * planned
        + _PLANNED_BEFORE * (proposed and not planned)
        + _PROPOSED * proposed
        + _CANCELLED * cancelled
        + _WITHDRAWN * withdrawn
        + _SETTLED * settled
        + _ATTEMPTS * attempts
        + _MODEL_CALL * model_call
        + _END.format(
            checks=_SETTLED_CHECK * settled + _PROPOSED_CHECK * proposed + _HEARD_CHECK * heard
        )
    )
    return _packed(statement)


def _packed(statement: str) -> str:
    """The statement without white space that nothing needs; its texts hold none of these marks."""
    packed = " ".join(statement.split())
    for mark in (", ", "( ", " )", " = ", " + "):
        packed = packed.replace(mark, mark.strip())
    return packed


def _parameters(
    claim: Claim, record: StepRecord, keep_claim_seconds: float | None
) -> dict[str, Any]:
    following = record.next
    keeps_claim = keep_claim_seconds is not None and following.status is RunStatus.QUEUED
    is_completed = following.status is RunStatus.COMPLETED
    words = claim.said if record.hears else 0
    heard = [Event("run.heard", {"words": words})] if words else []
    events = [*record.events, *heard, *_run_event(following)]
    parameters: dict[str, Any] = {
        "run_id": claim.run_id,
        "step": claim.step,
        "token": UUID(claim.token),
        "request_version": claim.request_version,
        "advance": int(record.advances),
        "status": RunStatus.RUNNING.value if keeps_claim else following.status.value,
        "phase": following.phase,
        "resume_phase": following.resume_phase,
        "outcome": following.outcome,
        "result": dumps(following.result) if is_completed else None,
        "error": _json(following.error),
        "is_terminal": following.status.is_terminal,
        "keeps_claim": keeps_claim,
        "deadline_seconds": keep_claim_seconds,
        "wake_after_seconds": following.wake_after_seconds,
        "failed_thinks": record.failed_thinks,
        "agent_hash": record.agent_hash,
        "tools_hash": record.tools_hash,
        "prompt_hash": record.prompt_hash,
        "messages_added": len(record.messages) + words,
        "words": words,
        "events_added": len(events),
        "tool_calls": record.tool_calls,
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
    }
    if record.advances:
        parameters |= {
            "kind": record.kind.value,
            "reason": record.reason,
            "state": dumps(record.state),
            "schema_version": CHECKPOINT_SCHEMA_VERSION,
            "started_at": claim.step_started_at,
        }
    if record.messages:
        parameters["messages"] = dumps([{"role": m.role, "body": m.body} for m in record.messages])
    if events:
        parameters["events"] = dumps([{"type": e.type, "data": e.data} for e in events])
    if record.planned:
        parameters["planned"] = dumps([_planned_row(effect) for effect in record.planned])
    if record.proposed:
        parameters |= {
            "proposed": dumps([proposal.to_row() for proposal in record.proposed]),
            "proposed_count": len(record.proposed),
            "tenant_id": claim.tenant_id,
            "user_id": claim.user_id,
        }
    if record.settled:
        parameters["settled"] = dumps([_settled_row(effect) for effect in record.settled])
        parameters["settled_count"] = len(record.settled)
    if record.model_call is not None:
        parameters |= _model_call_parameters(record.model_call)
    return parameters


def _run_event(following: Next) -> list[Event]:
    """The line that says where the run went, last; going on is not worth one."""
    if following.status is RunStatus.QUEUED:
        return []
    data: dict[str, JsonValue] = {}
    if following.phase is not None:
        data["phase"] = following.phase
    if following.outcome is not None:
        data["outcome"] = following.outcome
    if following.error is not None:
        data["error"] = following.error
    return [Event(f"run.{following.status}", data)]


def _planned_row(effect: PlannedEffect) -> dict[str, JsonValue]:
    return {
        "call_id": effect.call_id,
        "call_index": effect.call_index,
        "provider_call_id": effect.provider_call_id,
        "tool": effect.tool,
        "tool_version": effect.tool_version,
        "kind": effect.kind.value,
        "flags": effect.flags,
        "arguments": effect.arguments,
        "state": effect.state.value,
        "error": effect.error,
        "requirement": effect.requirement,
    }


def _settled_row(effect: SettledEffect) -> dict[str, JsonValue]:
    row: dict[str, JsonValue] = {
        "call_id": effect.call_id,
        "was": effect.was.value,
        "state": effect.state.value,
        "error": effect.error,
        "is_attempt": effect.is_attempt,
        "evidence": effect.evidence,
    }
    if effect.result_artifact is not None:
        row["result_artifact"] = effect.result_artifact.hex()
    elif effect.state is EffectState.COMMITTED:
        row["result"] = effect.result
    return row


def _model_call_parameters(call: ModelCall) -> dict[str, Any]:
    return {
        "model_attempt": call.attempt,
        "model": call.model,
        "model_messages": call.message_count,
        "model_outcome": call.outcome,
        "model_error": _json(call.error),
        "usage": _json(call.usage),
        "call_prompt_hash": call.prompt_hash,
        "call_tools_hash": call.tools_hash,
        "model_started_at": call.started_at,
    }


def _json(value: JsonValue) -> str | None:
    return None if value is None else dumps(value)
