"""What events say: the shapes of their `data`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from celeriac.states import EffectState, Phase


class Facts(BaseModel):
    """The `data` of an event."""

    model_config = ConfigDict(frozen=True)

    v: Literal[1] = 1


class Error(BaseModel):
    """What went wrong. Some kinds add fields of their own."""

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: str
    message: str


class Created(Facts):
    agent: str
    thread_id: str
    parent_run_id: str | None = None  # of a child: the run that asked for it,
    parent_call_id: str | None = None  # and the call that it answers
    start_at: str | None = None  # of a delayed run
    forked_from: str | None = None  # of a fork or a retry: the run that it goes on from,
    forked_step: int | None = None  # and the step of that which it makes instead


class By(Facts):
    by: str  # a user, or whoever a program says it speaks for


class Paused(Facts):
    phase: Phase


class DeadlinePassed(Facts):
    deadline_at: str


class ChildStarted(Facts):
    call_id: str
    child_run_id: str
    agent: str
    is_handoff: bool


class OfEntry(Facts):
    number: int  # in the workflow's log
    kind: str
    name: str
    made_by: str | None = None  # the run that does it


class EntryFailed(OfEntry):
    error: Error


class Continued(Facts):
    generation: int  # that begins


class Told(Facts):
    name: str  # of the event
    by: str


class OfBudget(Facts):
    scope: str  # tenant, user, thread or run
    subject: str  # its id
    measure: str  # tokens, usd, steps, tool_calls or seconds
    needed: str  # by the next step; amounts are exact
    used: str | None = None  # this and the limit are not told of a tenant's: others used it too
    reserved: str | None = None


class BudgetWarned(OfBudget):
    soft_limit: str | None = None


class BudgetExceeded(OfBudget):
    hard_limit: str | None = None


class Woken(Facts):
    waited_for: str  # the phase without `waiting_`


class Recovered(Facts):
    from_checkpoint: int | None = None  # the last committed step; none before the first
    step: int
    epoch: int  # of the claim that is over
    worker_id: str | None = None
    reason: str  # lifeline, lease or deadline


class Stumbled(Facts):
    step: int
    epoch: int
    error: Error


class Attention(Facts):
    phase: Phase | None = None
    from_checkpoint: int | None = None
    step: int | None = None
    epoch: int | None = None
    worker_id: str | None = None
    reason: str | None = None
    error: Error


class Heard(Facts):
    words: int  # messages of the user that the conversation now has


class Completed(Facts):
    outcome: str


class Failed(Facts):
    outcome: str
    error: Error


class Cancelled(Facts):
    outcome: str
    by: str | None = None  # without it, `run.cancel_requested` says who


class PlannedCall(BaseModel):
    model_config = ConfigDict(frozen=True)

    call_id: str
    tool: str
    state: EffectState


class ModelAttempt(Facts):
    step: int
    epoch: int  # of the claim that asked


class Answered(ModelAttempt):
    calls: list[PlannedCall] = []
    text: str | None = None  # of an agent that streams: what the pieces of text add up to


class Missing(BaseModel):
    """A requirement of the contract that is not met."""

    model_config = ConfigDict(frozen=True)

    requirement: str
    why: str


class ContractUnmet(Facts):
    enforcement: Literal["strict", "advisory"]
    unmet: list[Missing]


class ContractRefused(ContractUnmet):
    correction: int  # of at most `max_corrections`
    max_corrections: int


class Questioned(ModelAttempt):
    why: str


class Interrupted(ModelAttempt):
    attempt: int


class AttemptFailed(ModelAttempt):
    attempt: int
    kind: str
    retry_in_seconds: float | None = None  # none: it is not asked again


class Call(Facts):
    call_id: str
    tool: str


class Attempt(Call):
    attempt: int


class Outcome(Call):
    error: Error | None = None
    by: str | None = None  # of a call that another process executed: who told the result


class Drifted(Call):
    by: str
    error: Error  # which digests do not follow each other


class Resolved(Call):
    state: EffectState
    by: str


class Reported(Call):
    by: str  # the worker


class MemoryDecision(Facts):
    call_id: str
    decision_id: int
    stored: bool
    reason: str


class Progress(Facts):
    call_id: str
    text: str


class ToolAttemptFailed(Attempt):
    error: Error
    retry_in_seconds: float


class CheckUnclear(Call):
    error: Error
    retry_in_seconds: float | None = None  # none: a person is asked


class RollbackRequested(Facts):
    run_id: str  # whose calls are to be undone
    from_step: int
    by: str
    calls: list[str]


class PlannedUndo(BaseModel):
    model_config = ConfigDict(frozen=True)

    call_id: str
    rolls_back: str  # the call of the other run
    kind: str  # in_band, compensate, out_of_band or none


class RollbackPlanned(Facts):
    run_id: str
    undos: list[PlannedUndo]


class ForkPlanned(Facts):
    run_id: str  # that it is a fork of
    calls: list[PlannedCall]
    told: list[str]  # calls of that run, of which the model is told what came of them


class Refused(Facts):
    calls: list[str]
    by: str
    error: str


class Proposal(Call):
    approval_id: str


class Requested(Proposal):
    version: int | None = None  # of an edited call
    roles: list[str] | None = None
    quorum: int | None = None
    reason: str | None = None


class Edited(Proposal):
    version: int
    by: str
    edited_from: str


class Surfaced(Facts):
    approval_id: str
    to: str


class Decided(Proposal):
    version: int
    decision: Literal["approve", "edit", "reject"]
    by: str
    status: str  # of the proposal now
    approvals: int | None = None  # so far, of `quorum`
    quorum: int | None = None
    reason: str | None = None


class Expired(Proposal):
    version: int


class Revoked(Facts):
    approval_id: str
    call_id: str
    why: str


class Validated(Proposal):
    arguments_hash: str


class Checked(Proposal):
    approved_by: list[str]
