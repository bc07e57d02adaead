"""What people are shown of runs and workers: exactly the JSON of the command line and of HTTP.

The fields, their names and their order are a contract (`docs/interface.md`): programs outside this
repository read them. Times are UTC; `to_json` writes them as ISO 8601.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from celeriac.codec import JsonValue
from celeriac.ids import (
    ApprovalId,
    CallId,
    RunId,
    ScheduleId,
    ThreadId,
    TokenId,
    UserId,
    WorkerId,
)
from celeriac.states import EffectKind, EffectState, Phase, RunStatus, StepKind

if TYPE_CHECKING:
    from celeriac.events.types import RunEvent


@dataclass(frozen=True, slots=True)
class Started:
    """A run that was just accepted, or the one that was told the input instead."""

    run_id: RunId
    thread_id: ThreadId
    status: RunStatus  # queued or paused; of a run that was told the input, any
    phase: Phase | None  # what it does next or waits for; None if it has ended since it was told


@dataclass(frozen=True, slots=True)
class Retried:
    """The run that tries a step again: itself, or of one that had failed, another one."""

    run_id: RunId
    status: RunStatus


@dataclass(frozen=True, slots=True)
class Step:
    """One committed step."""

    step: int
    kind: StepKind
    worker_id: WorkerId
    started_at: datetime
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one run."""

    run_id: RunId
    call_id: CallId


@dataclass(frozen=True, slots=True)
class Effect:
    """One tool call's durable record."""

    call_id: CallId
    tool: str
    kind: EffectKind
    state: EffectState
    attempt: int  # tries so far; a call that only reads counts as one when it is settled
    key: str  # what the tool is given as its idempotency key
    rolls_back: Call | None  # the call that this one takes back
    rolled_back_by: Call | None  # what takes this one back, or makes up for it, if it was begun
    arguments: JsonValue  # as they are, or were, executed; None once erased
    result: JsonValue  # None too if it is large, and then the artifact's
    result_artifact: str | None  # sha256 of the stored text of a large result, in hex
    error: JsonValue


@dataclass(frozen=True, slots=True)
class RequestedWorkspace:
    """What the receipt of a requested call has to say again of the files that it changes."""

    root: str  # the workspace's name: the thread's id
    nonce: str  # of this one request
    algorithm: str
    last_digest: str | None  # what the run left behind there; None: nothing is known yet


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A call that another process is to execute, and whose result is waited for."""

    run_id: RunId
    call_id: CallId
    tool: str
    arguments: JsonValue
    key: str  # the same for this call however often it is asked about: for doing it once
    requested_at: datetime
    workspace: RequestedWorkspace | None  # None: the call changes no files


@dataclass(frozen=True, slots=True)
class Approval:
    """A proposal: one version of one call that needs a decision, and what came of it."""

    approval_id: ApprovalId
    run_id: RunId
    call_id: CallId
    tool: str
    arguments: JsonValue
    arguments_hash: str  # sha256 of tool, version and arguments, 64 hex digits
    version: int  # of the call: an edit makes a proposal of the next
    intent: str
    data_lineage: Sequence[JsonValue]
    permissions_touched: Sequence[str]
    blast_radius: str
    rollback_plan: Mapping[str, JsonValue]
    idempotency_key: str
    status: str  # one of `celeriac.states.ApprovalStatus`
    expires_at: datetime | None
    reason: str  # why a person is asked
    requirement: Mapping[str, JsonValue]  # roles, quorum, checklist … that these arguments need
    approved_by: Sequence[UserId]  # so far; `quorum` of them are needed
    requested_by: UserId
    created_at: datetime
    edited_from: ApprovalId | None


@dataclass(frozen=True, slots=True)
class Decided:
    """What a decision led to."""

    approval_id: ApprovalId  # after an edit, of the new version
    run_id: RunId
    call_id: CallId
    version: int
    status: str  # pending: it counts, and more are needed
    approvals: int  # persons that have approved this version
    quorum: int


@dataclass(frozen=True, slots=True)
class Budget:
    """What runs may use together, and what they have used. Amounts are exact: strings in JSON."""

    scope: str  # tenant, user, thread or run
    subject: str  # its id
    measure: str  # tokens, usd, steps, tool_calls or seconds
    soft_limit: Decimal | None
    hard_limit: Decimal | None
    on_exceeded: str  # pause or fail
    used: Decimal
    reserved: Decimal  # by calls that are being made, and by those of which nobody knows
    in_doubt: Decimal  # the part of it that no call in progress holds
    waiting_runs: int


@dataclass(frozen=True, slots=True)
class Principal:
    """A person as far as decisions go."""

    user_id: UserId
    roles: Sequence[str]
    permissions: Mapping[str, JsonValue]  # tool, or * for all others → conditions on the arguments
    version: int  # counts changes
    disabled: bool


@dataclass(frozen=True, slots=True)
class Child:
    """A run that another one started, below the run that is shown."""

    run_id: RunId
    parent: Call  # that it answers
    agent: str
    status: RunStatus
    phase: Phase | None
    outcome: str | None
    is_handoff: bool  # it goes on with its parent's conversation
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Activity:
    """A line of a workflow's log: something that its code has asked for."""

    number: int  # in the order of asking
    kind: str  # one of `celeriac.workflows.entry.EntryKind`
    name: str  # of the tool, agent, workflow or event; of a value what it is
    state: str  # open, completed, failed; or answered, at once
    arguments: JsonValue
    result: JsonValue  # None too if it is large: then the run that made it names its artifact
    error: JsonValue
    run_id: RunId | None  # that makes it
    run_status: RunStatus | None
    run_phase: Phase | None
    due_at: datetime | None  # of a timer
    is_awaited: bool  # whether the code waits for it just now
    told: int | None  # the place of its end among all ends
    asked_at: datetime
    ended_at: datetime | None
    worker_id: WorkerId | None  # the last one that claimed the run that makes it
    generation: int  # of the log: how often the run had begun again (`continue_as_new`)


@dataclass(frozen=True, slots=True)
class Contract:
    """What the run has to meet before it completes, and what was last said of that."""

    enforcement: str  # strict, or advisory
    requirements: Mapping[str, JsonValue]
    is_met: bool | None  # None: the model has not said yet that it is done
    unmet: Sequence[JsonValue]  # each {requirement, why}
    corrections: int  # how often the model was told
    max_corrections: int


@dataclass(frozen=True, slots=True)
class Use:
    """What the model calls of one run, or of several, took so far."""

    input_tokens: int
    output_tokens: int
    usd: Decimal  # of the calls whose price is known; a string in JSON
    unpriced_calls: int  # answered ones whose price nobody knows


@dataclass(frozen=True, slots=True)
class Run:
    """One run with all that came of it so far."""

    run_id: RunId
    thread_id: ThreadId
    user_id: UserId
    agent: str
    status: RunStatus
    phase: Phase | None
    outcome: str | None
    step: int  # the next one to be committed, so also how many are
    epoch: int  # claims so far
    worker_id: WorkerId | None  # the last one that claimed it
    deaths: int  # workers that died in it
    input: JsonValue
    result: JsonValue
    error: JsonValue
    created_at: datetime
    finished_at: datetime | None
    steps: Sequence[Step]
    effects: Sequence[Effect]
    approvals: Sequence[Approval]
    kind: str  # agent, workflow, activity, or rollback
    rolls_back: RunId | None  # of a rollback: the run that it undoes
    rollbacks: Sequence[RunId]  # of this run, the oldest first
    parent: Call | None  # of a child: the call that it answers
    children: Sequence[Child]  # the runs below it, each after the one that started it
    activities: Sequence[Activity]  # the latest of a workflow's log, in the order of asking
    start_at: datetime | None  # of a delayed run
    deadline_at: datetime | None
    contract: Contract | None  # what it has to meet before it completes
    use: Use
    family_use: Use  # of it and all the runs below it
    erased_at: datetime | None  # its payloads were, for good
    pruned_at: datetime | None  # so were its steps, messages, events but the last, and reads
    forked_from: RunId | None  # the run that it goes on from
    forked_step: int | None  # and the step of that which it makes instead
    forks: Sequence[RunId]  # of this run, retries among them, the oldest first


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run in a list: what it is and where it stands, without its payloads."""

    run_id: RunId
    thread_id: ThreadId
    user_id: UserId
    agent: str
    status: RunStatus
    phase: Phase | None
    outcome: str | None
    step: int
    epoch: int
    worker_id: WorkerId | None
    deaths: int
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Thread:
    """One conversation, and its latest runs, the newest first."""

    thread_id: ThreadId
    user_id: UserId
    created_at: datetime
    runs: Sequence[RunLine]


@dataclass(frozen=True, slots=True)
class ThreadLine:
    """One conversation in a list."""

    thread_id: ThreadId
    user_id: UserId
    created_at: datetime
    runs: int  # that its user started
    last_run: RunLine | None  # of those


@dataclass(frozen=True, slots=True)
class ScheduleFire:
    """What came of one time of a schedule."""

    scheduled_at: datetime
    fired_at: datetime
    triggered_by: UserId | None  # None: the time had come
    outcome: str  # started, queued, skipped, or refused
    run_id: RunId | None  # that was started
    error: JsonValue  # why it was refused


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule, its next times, and what came of the latest, the newest first."""

    schedule_id: ScheduleId
    user_id: UserId  # whose runs it starts
    agent: str
    input: JsonValue
    cron: str
    time_zone: str
    overlap: str
    catch_up: str
    catch_up_limit: int
    jitter_seconds: float
    paused: bool
    next_fire_at: datetime | None
    created_at: datetime
    created_by: UserId
    next_times: Sequence[datetime]
    fires: Sequence[ScheduleFire]


@dataclass(frozen=True, slots=True)
class Timer:
    """A time that a run waits for."""

    run_id: RunId
    user_id: UserId
    agent: str
    timer_id: str | None  # start, or the call that waits; None: something is tried again then
    due_at: datetime


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token as it is listed: never the token itself."""

    token_id: TokenId
    tenant_id: str
    user_id: UserId
    name: str  # what its owner calls it
    prefix: str  # how it begins
    roles: Sequence[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None  # to the minute


@dataclass(frozen=True, slots=True)
class NewToken(Token):
    """A bearer token that was just made, with what nobody is told again."""

    token: str = field(repr=False)

    @classmethod
    def of(cls, made: Token, token: str) -> "NewToken":
        return cls(**{each.name: getattr(made, each.name) for each in fields(made)}, token=token)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a run's history. `seq` counts 1, 2, 3 … without a gap."""

    run_id: RunId
    seq: int
    type: str
    at: datetime
    data: Mapping[str, JsonValue]

    @property
    def is_terminal(self) -> bool:
        """Whether this is the run's last event."""
        return self.type in TERMINAL_EVENTS

    def typed(self) -> "RunEvent[Any] | None":
        """The event as the model of its type (`celeriac.events`). None for a type, or a version of
        it, that a newer runtime has written: what is here can still be read."""
        from celeriac.events import known

        return known(self)


TERMINAL_EVENTS = frozenset(f"run.{status}" for status in RunStatus if status.is_terminal)


@dataclass(frozen=True, slots=True)
class Worker:
    """One process that executes steps, or did."""

    worker_id: WorkerId
    hostname: str
    pid: int
    alive: bool  # neither stopped nor declared dead, and its lease is not over
    running: Sequence[RunId]


@dataclass(frozen=True, slots=True)
class Wait:
    """Why nobody works on a run just now, in facts. Not part of the contract."""

    phase: Phase | None
    queue: str
    wake_at: datetime | None
    behind: RunId | None  # the run that holds its thread
    is_cancel_requested: bool
    unknown_calls: Sequence[CallId]
    last_event_seq: int


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of a user under a key, where it comes from, and why it was kept."""

    user_id: UserId
    namespace: str
    key: str
    kind: str  # semantic, episodic or procedural
    version: int  # counts each change
    value: JsonValue
    expires_at: datetime | None
    created_at: datetime
    changed_at: datetime
    reason: str  # why it was kept
    decision_id: int
    origin: str  # whose words: user, or person for what came by the API or the command line
    run_id: RunId | None  # that it was proposed in, which may not be there any more
    call_id: CallId | None
    message_position: int | None  # of the run's message with the user's words
    approval_id: ApprovalId | None
    proposed_by: str  # an agent, or a person


@dataclass(frozen=True, slots=True)
class FoundMemories:
    """What a search of one user's memories has found."""

    memories: Sequence[Memory]
    found_by: Sequence[str]  # `words`, and the embedder's name; empty without a query


@dataclass(frozen=True, slots=True)
class MemoryDecision:
    """What became of one candidate. There is nothing in it of what was refused but a hash."""

    decision_id: int
    user_id: UserId
    store: bool
    reason: str
    namespace: str | None  # None, as the key and the kind, if it could be none
    key: str | None
    kind: str | None
    origin: str
    run_id: RunId | None
    call_id: CallId | None
    message_position: int | None
    source_call_id: CallId | None  # the call whose result holds the content
    approval_id: ApprovalId | None
    proposed_by: str
    policy_version: str
    content_hash: (
        str  # sha256 of the stored text, in hex; of a sensitive one without what is secret
    )
    decided_at: datetime


@dataclass(frozen=True, slots=True)
class Remembered:
    """What came of a candidate that a person has put in."""

    decision_id: int
    store: bool
    reason: str
    why: str
    version: int | None  # of what is remembered under the key now


@dataclass(frozen=True, slots=True)
class MemoryExport:
    """All that is remembered of a user, and what was decided about candidates."""

    user_id: UserId
    memories: Sequence[Memory]
    decisions: Sequence[MemoryDecision]  # the latest first


def to_json(value: object) -> JsonValue:
    """A report, or a list of them, as plain JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return cast(JsonValue, value.value)
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return cast(Any, value)  # type: ignore[no-any-return]  # what is left is a JSON scalar already
