"""Everything that Celeriac raises on purpose.

    CeleriacError
    ├── InvalidInput            the caller's words cannot be used; nothing was written
    │   ├── InvalidAgent        an Agent or tool that cannot be registered
    │   ├── InvalidArguments    what the model or an editor gave a tool; nothing was executed
    │   ├── InvalidPlan         its steps contradict each other, or what executes them
    │   ├── UnknownAgent
    │   ├── UnknownRun
    │   ├── UnknownCall
    │   ├── UnknownApproval
    │   ├── UnknownThread
    │   ├── UnknownSchedule
    │   ├── UnknownToken
    │   ├── UnknownMemory
    │   ├── UnknownBudget
    │   ├── InvalidDecision     without the reason or the answers that are asked for
    │   ├── InvalidReceipt      what another process says that a call did to files
    │   └── KeyReused           an idempotency key that belongs to another request
    ├── Conflict                the words are fine, the state of the run does not allow it
    │   ├── RunExists
    │   ├── ThreadBusy
    │   ├── WrongOwner
    │   ├── DecisionRefused     decided, expired, changed or ended before the decision came
    │   ├── KeyInUse            the first request with this idempotency key is still at work
    │   └── KeyPruned           it was carried out long ago, and its answer is not kept any more
    ├── NotAllowed              this person may not decide this call
    │   └── RoleMissing         the token's roles do not allow this operation
    ├── Unauthenticated         no token, or none that is good
    ├── Fenced                  this claim no longer holds its step; nothing was written
    ├── Unavailable             a server does not answer; trying later may help
    │   ├── DatabaseUnavailable
    │   ├── BrokerUnavailable
    │   └── RateLimited         this caller has asked too often
    ├── NotSetUp                the logins that this installation was given do not allow it
    ├── UnexpectedAnswer        the HTTP API, or what stands in its place, said what cannot be read
    ├── SchemaMismatch          the database is not migrated, or is newer than this code
    ├── StackFailed             a server or service of `celeriac up` cannot be started
    │   └── StackRunning        another process runs the stack of this folder
    ├── EmbedderFailed          it raised, or what it made are no vectors
    ├── NoConnection            a tool asked for a connection that its effect does not give it
    ├── ActivityFailed          raised in a workflow: something that it asked for has failed
    ├── PlanFailed              steps of a plan have failed; the others are kept for a retry
    ├── LogFull                 a workflow has asked for more than one log can hold
    ├── StaleFlow               a workflow's log has gone on without this process
    └── ToolError               raised by a tool: it failed and certainly changed nothing
        └── WorkspaceAway       its files cannot be used from this worker, or not now

Over HTTP, unknown ids are 404, `InvalidInput` is 422, `Conflict` 409, `NotAllowed` 403 and
`Unavailable` 503; the few that differ stand in `celeriac_api.problems`. A message says what
happened and with which values, why, and what to do now.
"""

from typing import Any


class CeleriacError(Exception):
    """Base of all errors here."""


class InvalidInput(CeleriacError):
    """The caller's words cannot be used. Checked before anything is written."""


class InvalidAgent(InvalidInput):
    """An agent or a tool contradicts itself, so that it cannot be registered."""


class InvalidArguments(InvalidInput):
    """A tool cannot take these arguments. The model reads the message; nothing was executed."""


class InvalidPlan(InvalidInput):
    """The steps of a plan contradict each other, or cannot be made by what executes it."""


class UnknownAgent(InvalidInput):
    """No agent of that name is known here or to any worker."""


class UnknownRun(InvalidInput):
    """There is no run of that id."""


class UnknownCall(InvalidInput):
    """The run has no tool call of that id."""


class UnknownApproval(InvalidInput):
    """There is no proposal of that id."""


class UnknownThread(InvalidInput):
    """There is no thread of that id, or it is another user's, which is not told."""


class UnknownSchedule(InvalidInput):
    """There is no schedule of that name."""


class UnknownToken(InvalidInput):
    """There is no token of that id."""


class UnknownMemory(InvalidInput):
    """Nothing is remembered under that key, or it is another user's, which is not told."""


class UnknownBudget(InvalidInput):
    """There is no such budget."""


class InvalidDecision(InvalidInput):
    """A decision lacks the reason or the answers that it needs. The proposal is still pending."""


class InvalidReceipt(InvalidInput):
    """What another process says of its workspace is missing, contradicts itself, or is of another
    call. The run still waits."""


class KeyReused(InvalidInput):
    """The idempotency key was given to another request before. Nothing was done."""


class Conflict(CeleriacError):
    """The run or thread is in a state that does not allow this. Nothing was changed."""


class RunExists(Conflict):
    """A run of that id exists already and was left as it is."""


class ThreadBusy(Conflict):
    """The thread has an active run and `on_busy` is `reject`."""


class WrongOwner(Conflict):
    """The thread belongs to another user."""


class DecisionRefused(Conflict):
    """The proposal is not pending any more, or not the one that was shown, or its run has ended."""


class KeyInUse(Conflict):
    """The first request with this idempotency key has not ended yet. Ask again."""


class KeyPruned(Conflict):
    """The request with this idempotency key was carried out; its answer is not kept any more."""


class NotAllowed(CeleriacError):
    """This person may not decide this call with these arguments. The proposal is still pending."""


class RoleMissing(NotAllowed):
    """What was asked for takes a role that the caller's token does not have."""


class Unauthenticated(CeleriacError):
    """Nobody is known by this token. The message does not say what is wrong with it."""


class Fenced(CeleriacError):
    """This claim no longer holds its step: another worker does. The whole transaction rolled
    back.
    """


class Unavailable(CeleriacError):
    """A server does not answer. The message says which one, at what address, and what to do."""


class DatabaseUnavailable(Unavailable):
    """PostgreSQL does not answer."""


class BrokerUnavailable(Unavailable):
    """The broker does not answer."""


class RateLimited(Unavailable):
    """This caller has asked more often than is allowed. Nothing was done."""


class NotSetUp(CeleriacError):
    """No login that this was given may do that. Nothing was done; whoever runs it can change it."""


class UnexpectedAnswer(CeleriacError):
    """What a client was answered is nothing that it knows: another program's answer, or that of a
    service with a fault. The message shows the beginning of it."""


class SchemaMismatch(CeleriacError):
    """The database's schema is older or newer than this code expects."""


class StackFailed(CeleriacError):
    """A part of the embedded stack cannot be started. What was started is stopped again."""


class StackRunning(StackFailed):
    """Another process runs the stack of this folder. Nothing was touched."""


class EmbedderFailed(CeleriacError):
    """An embedder raised, or what it made are no vectors. Memories are found by their words."""


class NoConnection(CeleriacError):
    """`ctx.connection` was read in a tool that does not declare `effect="transactional"`.

    Not a ToolError: the tool may have changed something before it asked.
    """


class ActivityFailed(CeleriacError):
    """Something that a workflow asked for has failed: `ctx.activity`, `ctx.child`, `ctx.model`.

    `kind` and `message` say what happened; `error` is all that is known, and `run_id` the run that
    failed, if it was one. `is_certain`: the call had no effect for sure, and may be made anew.
    """

    def __init__(self, asked: str, error: dict[str, Any]) -> None:
        self.error = error
        self.kind = str(error.get("kind", "failed"))
        self.message = str(error.get("message", ""))
        self.run_id: str | None = error.get("run_id")
        self.is_certain = error.get("is_certain") is True
        super().__init__(f"{asked} has failed: {self.message or self.kind}")


class PlanFailed(CeleriacError):
    """Steps of a plan have failed. What was completed is kept, and a retry of the run goes on."""


class LogFull(CeleriacError):
    """A workflow has asked for more than one log can hold; see `ctx.continue_as_new`."""


class StaleFlow(CeleriacError):
    """A workflow's log has gone on without this process, which must begin from its start."""


class ToolError(CeleriacError):
    """Raise it in a tool that failed and certainly changed nothing; the model reads the message.

    Any other exception from a tool with `effect="external"` leaves the outcome unknown, because it
    may have come after the change, and the run waits for a person (`docs/effects.md`).
    """


class WorkspaceAway(ToolError):
    """The workspace cannot be used from this worker, or not now: it is not mounted here, it is
    locked, or there is no git. Nothing was changed.
    """
