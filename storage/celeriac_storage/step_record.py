"""What a step leaves behind: the words in which a transition says what it did (`steps.commit`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

from celeriac.budget import Use
from celeriac.codec import JsonValue
from celeriac.ids import CallId, RunId
from celeriac.rollback import Rollback
from celeriac.states import EffectKind, EffectState, Phase, RunStatus, StepKind
from celeriac_storage.approvals import Proposal
from celeriac_storage.dispatch import Due


@dataclass(frozen=True, slots=True)
class AwaitedRoom:
    """What a run waits for that its budget refuses."""

    budget_id: int
    needed: Decimal


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
    budget: "AwaitedRoom | None" = None  # only for `waiting_budget`

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
    def waiting_for_timer(cls, seconds: float, resume_phase: Phase) -> "Next":
        """To be tried again after so many seconds."""
        return cls(
            RunStatus.PAUSED,
            Phase.WAITING_TIMER,
            resume_phase=resume_phase,
            wake_after_seconds=seconds,
        )

    @classmethod
    def waiting_for_user(cls, resume_phase: Phase) -> "Next":
        """Interrupted: until the user says something."""
        return cls(RunStatus.PAUSED, Phase.WAITING_USER, resume_phase=resume_phase)

    @classmethod
    def waiting_for_budget(cls, budget_id: int, needed: Decimal, resume_phase: Phase) -> "Next":
        """Until so much is left of the budget."""
        return cls(
            RunStatus.PAUSED,
            Phase.WAITING_BUDGET,
            resume_phase=resume_phase,
            budget=AwaitedRoom(budget_id, needed),
        )

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
class PlannedUndo:
    """An effect that takes back a call of another run, which it has its arguments from; or that
    says why nothing will: `invalid`, with the reason."""

    call_id: CallId
    call_index: int
    tool: str
    kind: Rollback
    of_run: RunId
    of_call: CallId
    state: EffectState = EffectState.PLANNED
    error: dict[str, JsonValue] | None = None


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
    is_check: bool = False  # nothing was tried: its precondition could not be read
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
    cost: Decimal | None = None  # in US dollars; None: unknown
    selection: dict[str, JsonValue] | None = None  # None: everything was sent
    is_metered: bool = True  # whether the tokens and the cost are what the provider bills


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
    undos: Sequence[PlannedUndo] = ()
    proposed: Sequence[Proposal] = ()  # of calls in `planned`, or without that, of earlier ones
    settled: Sequence[SettledEffect] = ()
    model_call: ModelCall | None = None
    handed_out: int = 0  # calls that other processes or runs are to answer from now on
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    failed_thinks: int = 0
    hears: bool = False  # the words that the claim knows of become messages, after its own
    ends_interrupt: bool = False
    agent_hash: str | None = None
    tools_hash: str | None = None
    prompt_hash: str | None = None
    budget_use: Use | None = None  # None: nobody counts what the run uses


@dataclass(frozen=True, slots=True)
class Committed:
    """Where the run now stands."""

    step: int
    status: RunStatus
    committed_at: datetime
    last_event_seq: int
    parent_step: Due | None = None  # of the run that waited for this one; to be published
    is_budgeted: bool = False  # for the step after it, under a claim that is kept
