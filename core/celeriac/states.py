"""The words a run, an effect and a step can be described with, and which may follow which.

`docs/states.md` draws both machines. The database enforces the same tables by trigger, and a test
compares the two, so neither can drift.
"""

from enum import StrEnum
from typing import Literal


class RunStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"  # holds no worker; the phase says what for
    NEEDS_ATTENTION = "needs_attention"  # a person must look
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return not RUN_TRANSITIONS[self]


class Phase(StrEnum):
    """What a run does or waits for, written before the wait begins."""

    WAITING_MODEL = "waiting_model"
    WAITING_TOOL = "waiting_tool"
    WAITING_CODE = "waiting_code"  # of a workflow: for its next turn
    WAITING_APPROVAL = "waiting_approval"
    WAITING_EXTERNAL = "waiting_external"
    WAITING_TIMER = "waiting_timer"
    WAITING_CHILD = "waiting_child"
    WAITING_ACTIVITY = "waiting_activity"  # of a workflow: for what it has asked for
    WAITING_USER = "waiting_user"
    WAITING_THREAD = "waiting_thread"
    WAITING_WORKER = "waiting_worker"
    WAITING_BUDGET = "waiting_budget"


ApprovalStatus = Literal[
    "pending", "approved", "rejected", "expired", "cancelled", "superseded", "revoked"
]
"""Of a proposal. An edit supersedes the version that it changes; an approval that does not hold any
more when the call is to be made is revoked."""


class EffectState(StrEnum):
    PLANNED = "planned"
    PROPOSED = "proposed"
    APPROVED = "approved"
    IN_FLIGHT = "in_flight"
    UNKNOWN = "unknown"
    NOT_DONE = "not_done"
    COMMITTED = "committed"
    FAILED = "failed"
    INVALID = "invalid"
    PRECONDITION_FAILED = "precondition_failed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    KNOWN_BAD = "known_bad"
    ROLLED_BACK = "rolled_back"

    @property
    def is_settled(self) -> bool:
        """Whether the model can be told the outcome of the call."""
        return self in SETTLED_EFFECTS


class EffectKind(StrEnum):
    """What a tool does to the world; see `docs/effects.md`."""

    NONE = "none"  # reads only; runs again after a crash
    TRANSACTIONAL = "transactional"  # writes in the step's own transaction; exactly once
    EXTERNAL = "external"  # changes something elsewhere; never repeated silently


class RunKind(StrEnum):
    AGENT = "agent"
    WORKFLOW = "workflow"
    ACTIVITY = "activity"  # one call of a tool, for a workflow
    ROLLBACK = "rollback"


class StepKind(StrEnum):
    THINK = "think"
    ACT = "act"
    FLOW = "flow"  # one turn of a workflow's code

    @classmethod
    def of(cls, phase: Phase) -> "StepKind":
        """What a run does next that is queued in this phase."""
        return {Phase.WAITING_TOOL: cls.ACT, Phase.WAITING_CODE: cls.FLOW}.get(phase, cls.THINK)


RUN_TRANSITIONS: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset(
        # paused: no live worker has the agent any more; failed: its deadline has passed. A claim
        # comes first in all other cases.
        {
            RunStatus.RUNNING,
            RunStatus.PAUSED,
            RunStatus.NEEDS_ATTENTION,
            RunStatus.FAILED,
            RunStatus.CANCELLED,
        }
    ),
    RunStatus.RUNNING: frozenset(set(RunStatus) - {RunStatus.RUNNING}),
    RunStatus.PAUSED: frozenset({RunStatus.QUEUED, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.NEEDS_ATTENTION: frozenset({RunStatus.QUEUED, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}

PHASES: dict[RunStatus, frozenset[Phase]] = {
    RunStatus.QUEUED: frozenset({Phase.WAITING_MODEL, Phase.WAITING_TOOL, Phase.WAITING_CODE}),
    RunStatus.RUNNING: frozenset({Phase.WAITING_MODEL, Phase.WAITING_TOOL, Phase.WAITING_CODE}),
    RunStatus.PAUSED: frozenset(
        {
            Phase.WAITING_APPROVAL,
            Phase.WAITING_EXTERNAL,
            Phase.WAITING_TIMER,
            Phase.WAITING_CHILD,
            Phase.WAITING_ACTIVITY,
            Phase.WAITING_USER,
            Phase.WAITING_THREAD,
            Phase.WAITING_WORKER,
            Phase.WAITING_BUDGET,
        }
    ),
    RunStatus.NEEDS_ATTENTION: frozenset(
        {Phase.WAITING_MODEL, Phase.WAITING_TOOL, Phase.WAITING_CODE, Phase.WAITING_USER}
    ),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset(),
    RunStatus.CANCELLED: frozenset(),
}
"""The phases each status may have; a terminal run has none."""

EFFECT_TRANSITIONS: dict[EffectState, frozenset[EffectState]] = {
    EffectState.PLANNED: frozenset(
        {
            EffectState.PLANNED,  # failed without an effect, and is tried again
            EffectState.PROPOSED,
            EffectState.IN_FLIGHT,
            EffectState.COMMITTED,  # effect="none" and "transactional": no attempt to lose
            EffectState.FAILED,
            EffectState.INVALID,
            EffectState.PRECONDITION_FAILED,
            EffectState.REJECTED,  # the user interrupted the run before anybody began the call
        }
    ),
    EffectState.PROPOSED: frozenset(
        {
            EffectState.APPROVED,
            EffectState.REJECTED,
            EffectState.EXPIRED,
            EffectState.PROPOSED,  # edited: version + 1
        }
    ),
    EffectState.APPROVED: frozenset(
        {
            EffectState.IN_FLIGHT,
            EffectState.COMMITTED,
            EffectState.FAILED,
            EffectState.PRECONDITION_FAILED,
            EffectState.PLANNED,  # approval revoked
            EffectState.REJECTED,  # interrupted, as above
            EffectState.APPROVED,  # failed without an effect, and is tried again
        }
    ),
    EffectState.IN_FLIGHT: frozenset(
        {
            EffectState.COMMITTED,
            EffectState.FAILED,
            EffectState.NOT_DONE,  # failed without an effect, and is tried again
            EffectState.UNKNOWN,
        }
    ),
    EffectState.UNKNOWN: frozenset(
        {
            EffectState.COMMITTED,
            EffectState.FAILED,  # its own worker, thought to be dead, says so after all
            EffectState.NOT_DONE,
            EffectState.KNOWN_BAD,
            EffectState.UNKNOWN,  # looked at again, and still not clear
            EffectState.IN_FLIGHT,  # a new attempt, the same key, at a target that knows keys
        }
    ),
    EffectState.NOT_DONE: frozenset(
        {
            EffectState.IN_FLIGHT,  # a new attempt, the same key
            EffectState.NOT_DONE,  # what must hold before it cannot be read just now
            EffectState.PRECONDITION_FAILED,
            EffectState.FAILED,  # interrupted: there is to be no other attempt
            # Its own worker, thought to be dead, says so after all; or it is an undo that did not
            # work, and that a person did by hand.
            EffectState.COMMITTED,
        }
    ),
    EffectState.COMMITTED: frozenset(
        {
            EffectState.KNOWN_BAD,
            EffectState.ROLLED_BACK,  # by the commit of its undo, and by nothing else
        }
    ),
    EffectState.KNOWN_BAD: frozenset(
        {
            EffectState.ROLLED_BACK,
            EffectState.COMMITTED,  # of an undo only: a person did by hand what it did not do
        }
    ),
    EffectState.FAILED: frozenset(),
    EffectState.INVALID: frozenset(),
    # Its own worker, thought to be dead, says so after all, before the model was told otherwise.
    EffectState.PRECONDITION_FAILED: frozenset({EffectState.COMMITTED}),
    EffectState.REJECTED: frozenset(),
    EffectState.EXPIRED: frozenset(),
    EffectState.ROLLED_BACK: frozenset(),
}

SETTLED_EFFECTS = frozenset(
    {
        EffectState.COMMITTED,
        EffectState.FAILED,
        EffectState.INVALID,
        EffectState.PRECONDITION_FAILED,
        EffectState.REJECTED,
        EffectState.EXPIRED,
        EffectState.ROLLED_BACK,
    }
)
