"""The events of a run, one model for each type."""

from datetime import datetime
from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from celeriac.events.facts import (
    Answered,
    Attempt,
    AttemptFailed,
    Attention,
    BudgetExceeded,
    BudgetWarned,
    By,
    Cancelled,
    Checked,
    CheckUnclear,
    ChildStarted,
    Completed,
    Continued,
    ContractRefused,
    ContractUnmet,
    Created,
    DeadlinePassed,
    Decided,
    Drifted,
    Edited,
    EntryFailed,
    Expired,
    Facts,
    Failed,
    ForkPlanned,
    Heard,
    Interrupted,
    MemoryDecision,
    OfEntry,
    Outcome,
    Paused,
    Progress,
    Proposal,
    Questioned,
    Recovered,
    Refused,
    Reported,
    Requested,
    Resolved,
    Revoked,
    RollbackPlanned,
    RollbackRequested,
    Stumbled,
    Surfaced,
    Told,
    ToolAttemptFailed,
    Validated,
    Woken,
)

D = TypeVar("D", bound=Facts)


class RunEvent(BaseModel, Generic[D]):
    """One line of a run's history, as `celeriac events --json` and the event stream show it."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    seq: int = Field(ge=1)
    at: datetime
    data: D


class RunCreated(RunEvent[Created]):
    """The run was accepted."""

    type: Literal["run.created"]


class RunPaused(RunEvent[Paused]):
    """The run waits, and holds no worker; the phase says what for."""

    type: Literal["run.paused"]


class RunWoken(RunEvent[Woken]):
    """What the run waited for is there; it is queued."""

    type: Literal["run.woken"]


class RunHeard(RunEvent[Heard]):
    """What the user said has become part of the conversation."""

    type: Literal["run.heard"]


class RunSaid(RunEvent[By]):
    """The user said something; a later step hears it."""

    type: Literal["run.said"]


class RunInterruptRequested(RunEvent[By]):
    """Somebody asked the run to stop until its user speaks."""

    type: Literal["run.interrupt_requested"]


class RunCancelRequested(RunEvent[By]):
    """Somebody asked the run to end."""

    type: Literal["run.cancel_requested"]


class RunDeadlinePassed(RunEvent[DeadlinePassed]):
    """The run's deadline has passed; it ends as soon as what was begun is recorded."""

    type: Literal["run.deadline_passed"]


class RunRecovered(RunEvent[Recovered]):
    """The step was taken from a worker that died or hung; another one claims it."""

    type: Literal["run.recovered"]


class RunStumbled(RunEvent[Stumbled]):
    """The step failed in the worker's own code; it is queued again."""

    type: Literal["run.stumbled"]


class RunNeedsAttention(RunEvent[Attention]):
    """Only a person can say how the run goes on."""

    type: Literal["run.needs_attention"]


class RunRetried(RunEvent[By]):
    """A person let the run try its step again."""

    type: Literal["run.retried"]


class RunCompleted(RunEvent[Completed]):
    """The run has its result. The last event."""

    type: Literal["run.completed"]


class RunFailed(RunEvent[Failed]):
    """The run ended without a result. The last event."""

    type: Literal["run.failed"]


class RunCancelled(RunEvent[Cancelled]):
    """The run was ended. The last event."""

    type: Literal["run.cancelled"]


class ModelAnswered(RunEvent[Answered]):
    """The model's whole response is committed; its calls come next."""

    type: Literal["model.answered"]


class ModelQuestioned(RunEvent[Questioned]):
    """The response was no good, and the model is asked again in words."""

    type: Literal["model.questioned"]


class ModelInterrupted(RunEvent[Interrupted]):
    """The request was cancelled, because the run was asked to stop."""

    type: Literal["model.interrupted"]


class ModelFailed(RunEvent[AttemptFailed]):
    """An attempt to ask the model failed."""

    type: Literal["model.failed"]


class ContractMet(RunEvent[Facts]):
    """What the run's contract requires is so; the run completes."""

    type: Literal["contract.met"]


class ContractRefusedEvent(RunEvent[ContractRefused]):
    """The model said that it is done, and is told what is missing."""

    type: Literal["contract.refused"]


class ContractUnmetEvent(RunEvent[ContractUnmet]):
    """The run ends, and something is missing that its contract requires, or advises."""

    type: Literal["contract.unmet"]


class CallRequested(RunEvent[Attempt]):
    """Another process is asked to execute the call."""

    type: Literal["call.requested"]


class UndoByHandRequested(RunEvent[Attempt]):
    """People are asked to undo a call by hand."""

    type: Literal["undo.requested"]


class CallDelegated(RunEvent[Attempt]):
    """A run of another agent is to answer the call."""

    type: Literal["call.delegated"]


class ChildRunStarted(RunEvent[ChildStarted]):
    """Another run was started, whose result is that of the call."""

    type: Literal["child.started"]


class ActivityStarted(RunEvent[OfEntry]):
    """The workflow's code asked for something, and it is begun."""

    type: Literal["activity.started"]


class ActivityCompleted(RunEvent[OfEntry]):
    """What the workflow's code asked for has its result."""

    type: Literal["activity.completed"]


class ActivityFailedEvent(RunEvent[EntryFailed]):
    """What the workflow's code asked for has failed."""

    type: Literal["activity.failed"]


class RunContinued(RunEvent[Continued]):
    """The workflow begins again with another input and an empty log."""

    type: Literal["run.continued"]


class RunTold(RunEvent[Told]):
    """Somebody told the workflow of an event."""

    type: Literal["run.told"]


class EffectInFlight(RunEvent[Attempt]):
    """An external call is about to be made."""

    type: Literal["effect.in_flight"]


class EffectCommitted(RunEvent[Outcome]):
    """The call has taken effect."""

    type: Literal["effect.committed"]


class EffectFailed(RunEvent[Outcome]):
    """The call failed, definitely."""

    type: Literal["effect.failed"]


class EffectInvalid(RunEvent[Outcome]):
    """The tool's code does not take the arguments."""

    type: Literal["effect.invalid"]


class EffectPreconditionFailed(RunEvent[Outcome]):
    """What must hold before the call did not, so it was not made."""

    type: Literal["effect.precondition_failed"]


class EffectRejected(RunEvent[Outcome]):
    """The call is never made."""

    type: Literal["effect.rejected"]


class EffectExpired(RunEvent[Outcome]):
    """Nobody decided about the call in time."""

    type: Literal["effect.expired"]


class EffectNotDone(RunEvent[Outcome]):
    """The call has certainly not taken effect; it is made again with the same key."""

    type: Literal["effect.not_done"]


class EffectUnknown(RunEvent[Outcome]):
    """Nobody knows whether the call took effect."""

    type: Literal["effect.unknown"]


class EffectKnownBad(RunEvent[Outcome]):
    """The call reported success, and its target does not show it."""

    type: Literal["effect.known_bad"]


class EffectRolledBack(RunEvent[Outcome]):
    """What the call had done is undone."""

    type: Literal["effect.rolled_back"]


class EffectResolved(RunEvent[Resolved]):
    """A person said what came of the call."""

    type: Literal["effect.resolved"]


class EffectReported(RunEvent[Reported]):
    """A worker that was thought dead said what came of its call."""

    type: Literal["effect.reported"]


class ResultsRefused(RunEvent[Refused]):
    """Results that another process sent were refused."""

    type: Literal["results.refused"]


class WorkspaceDrifted(RunEvent[Drifted]):
    """Another process has found its files changed by somebody else; a person is asked."""

    type: Literal["workspace.drifted"]


class MemoryDecided(RunEvent[MemoryDecision]):
    """The policy has decided about something that the model would have remembered."""

    type: Literal["memory.decided"]


class ToolProgress(RunEvent[Progress]):
    """What the tool said while it ran; written when it has ended."""

    type: Literal["tool.progress"]


class ToolFailed(RunEvent[ToolAttemptFailed]):
    """An attempt failed without an effect, and is repeated."""

    type: Literal["tool.failed"]


class PreconditionUnclear(RunEvent[CheckUnclear]):
    """Nobody can tell whether the call may be made."""

    type: Literal["precondition.unclear"]


class UndoRequested(RunEvent[RollbackRequested]):
    """Somebody asked to undo what another run did; the first step of that."""

    type: Literal["rollback.requested"]


class ForkedCallsPlanned(RunEvent[ForkPlanned]):
    """The calls that a fork finds still to be made are planned anew, as its own."""

    type: Literal["fork.planned"]


class UndoPlanned(RunEvent[RollbackPlanned]):
    """It is known how each call is undone."""

    type: Literal["rollback.planned"]


class ProposalRecorded(RunEvent[Proposal]):
    """A call that needs a decision was proposed."""

    type: Literal["proposal.recorded"]


class ProposalEdited(RunEvent[Edited]):
    """A person replaced the arguments: the next version of the proposal."""

    type: Literal["proposal.edited"]


class ApprovalRequested(RunEvent[Requested]):
    """People are asked to decide about the proposal."""

    type: Literal["approval.requested"]


class ApprovalSurfaced(RunEvent[Surfaced]):
    """The proposal was shown to a person for the first time."""

    type: Literal["approval.surfaced"]


class ApprovalCounted(RunEvent[Decided]):
    """One more person approved; more are needed."""

    type: Literal["approval.counted"]


class ApprovalDecided(RunEvent[Decided]):
    """The proposal was approved, rejected or replaced by an edit."""

    type: Literal["approval.decided"]


class ApprovalExpired(RunEvent[Expired]):
    """Nobody decided in time; that is no denial."""

    type: Literal["approval.expired"]


class ApprovalRevoked(RunEvent[Revoked]):
    """The approval does not hold any more; the call is proposed again."""

    type: Literal["approval.revoked"]


class ArgsValidated(RunEvent[Validated]):
    """The approved arguments were checked right before the call."""

    type: Literal["args.validated"]


class AuthzChecked(RunEvent[Checked]):
    """The reviewers' rights were checked right before the call."""

    type: Literal["authz.checked"]


class BudgetHasWarned(RunEvent[BudgetWarned]):
    """A budget's soft limit is reached; the run goes on."""

    type: Literal["budget.warned"]


class BudgetWasExceeded(RunEvent[BudgetExceeded]):
    """What the next step may use does not fit a budget; the run waits for a top-up, or ends."""

    type: Literal["budget.exceeded"]


AnyEvent = Annotated[
    RunCreated
    | RunPaused
    | RunWoken
    | RunHeard
    | RunSaid
    | RunInterruptRequested
    | RunCancelRequested
    | RunDeadlinePassed
    | RunRecovered
    | RunStumbled
    | RunNeedsAttention
    | RunRetried
    | RunCompleted
    | RunFailed
    | RunCancelled
    | ModelAnswered
    | ModelQuestioned
    | ModelInterrupted
    | ModelFailed
    | ContractMet
    | ContractRefusedEvent
    | ContractUnmetEvent
    | CallRequested
    | UndoByHandRequested
    | CallDelegated
    | ChildRunStarted
    | ActivityStarted
    | ActivityCompleted
    | ActivityFailedEvent
    | RunContinued
    | RunTold
    | EffectInFlight
    | EffectCommitted
    | EffectFailed
    | EffectInvalid
    | EffectPreconditionFailed
    | EffectRejected
    | EffectExpired
    | EffectNotDone
    | EffectUnknown
    | EffectKnownBad
    | EffectRolledBack
    | EffectResolved
    | EffectReported
    | ResultsRefused
    | WorkspaceDrifted
    | MemoryDecided
    | ToolProgress
    | ToolFailed
    | PreconditionUnclear
    | UndoRequested
    | ForkedCallsPlanned
    | UndoPlanned
    | ProposalRecorded
    | ProposalEdited
    | ApprovalRequested
    | ApprovalSurfaced
    | ApprovalCounted
    | ApprovalDecided
    | ApprovalExpired
    | ApprovalRevoked
    | ArgsValidated
    | AuthzChecked
    | BudgetHasWarned
    | BudgetWasExceeded,
    Field(discriminator="type"),
]
