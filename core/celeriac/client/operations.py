"""What can be asked of runs and proposals: each is all that happens for it in one transaction.

The client performs them as they are; the HTTP API adds who may ask, and an idempotency key, to the
same transaction.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from sqlalchemy import Connection

from celeriac.client.first_step import FirstStep
from celeriac.errors import (
    CeleriacError,
    Conflict,
    DatabaseUnavailable,
    InvalidReceipt,
    NotAllowed,
    UnknownApproval,
    UnknownCall,
    WrongOwner,
)
from celeriac.ids import (
    ApprovalId,
    CallId,
    RunId,
    ScheduleId,
    TenantId,
    ThreadId,
    UserId,
    new_run_id,
    new_thread_id,
)
from celeriac.reports import Decided, Retried, Schedule, ScheduleFire, Started
from celeriac.schedule import NewSchedule
from celeriac.states import RunStatus
from celeriac.testpoints import reach
from celeriac_storage import (
    deciding,
    forks,
    inbox,
    mailbox,
    requests,
    resolving,
    rollbacks,
    schedules,
    starting,
    submitting,
)
from celeriac_storage.resolving import Resolution
from celeriac_storage.rulings import Decision
from celeriac_storage.submitting import Results
from celeriac_storage.tenancy import Transactions

if TYPE_CHECKING:
    from celeriac.codec import JsonValue
    from celeriac_storage.admitting import RunSpec

Answer = TypeVar("Answer")


class Operation(Generic[Answer]):
    """One thing that somebody asks for."""

    def act(self, connection: Connection) -> Answer:
        """Do it, all in this transaction. Raises `CeleriacError`; then roll it back."""
        raise NotImplementedError

    def is_noted(self, refused: CeleriacError) -> bool:
        """Whether a refusal for this reason is recorded."""
        return False

    def note_refusal(self, connection: Connection, refused: CeleriacError) -> None:
        """Record it, in a transaction of its own."""

    def finish(self, transactions: Transactions) -> None:
        """What comes after the commit. Raises nothing if the broker is away."""


def perform(
    transactions: Transactions,
    operation: Operation[Answer],
    check: Callable[[Connection], None] = lambda _: None,
) -> Answer:
    """Do it and record it, or record that it was refused, and raise why.

    `check` raises if it may not even be tried, and nothing is recorded.
    """
    is_acting = False
    try:
        with transactions.begin() as connection:
            check(connection)
            is_acting = True
            answer = operation.act(connection)
    except CeleriacError as refused:
        if is_acting and operation.is_noted(refused):
            with transactions.begin() as connection:
                operation.note_refusal(connection, refused)
        raise
    operation.finish(transactions)
    return answer


@dataclass(slots=True)
class Start(Operation[Started]):
    """Start a run. `first_step` publishes it after the commit; without, a scheduler does."""

    spec: "RunSpec"
    first_step: FirstStep | None = None
    is_written: bool = False  # only its commit can still fail
    _started: Started | None = field(default=None, init=False)
    _queue: str = field(default="", init=False)

    def act(self, connection: Connection) -> Started:
        from celeriac_storage.admitting import admit

        new = admit(connection, self.spec)
        started = starting.start(connection, new)
        run_id = started.said_to or new.run_id
        self._started = Started(run_id, new.thread_id, started.status, started.phase)
        self._queue = new.queue
        self.is_written = True
        return self._started

    def is_noted(self, refused: CeleriacError) -> bool:
        return isinstance(refused, WrongOwner)

    def note_refusal(self, connection: Connection, refused: CeleriacError) -> None:
        assert isinstance(refused, WrongOwner)
        spec = self.spec
        starting.record_refusal(
            connection, spec.tenant_id, spec.run_id, spec.thread_id, spec.user_id, refused
        )

    def finish(self, transactions: Transactions) -> None:
        started = self._started
        assert started is not None, "it has acted"
        is_new = started.run_id == self.spec.run_id  # else its input was told to another
        if self.first_step is not None and is_new and started.status is RunStatus.QUEUED:
            self.first_step.publish(started.run_id, self._queue, transactions)


@dataclass(frozen=True, slots=True)
class Cancel(Operation[RunStatus]):
    run_id: RunId
    by: UserId

    def act(self, connection: Connection) -> RunStatus:
        return requests.request_cancel(connection, self.run_id, self.by)


@dataclass(frozen=True, slots=True)
class Interrupt(Operation[RunStatus]):
    run_id: RunId
    by: UserId

    def act(self, connection: Connection) -> RunStatus:
        return requests.request_interrupt(connection, self.run_id, self.by)


@dataclass(frozen=True, slots=True)
class Say(Operation[RunStatus]):
    run_id: RunId
    text: str
    by: UserId
    key: str | None = None  # one of all runs' (`inbox.key_of_word`)

    def act(self, connection: Connection) -> RunStatus:
        from celeriac_storage.admitting import word

        return inbox.say(connection, self.run_id, word(self.text), self.by, self.key)


@dataclass(frozen=True, slots=True)
class SendEvent(Operation[RunStatus]):
    run_id: RunId
    name: str
    data: object
    by: UserId
    key: str | None = None

    def act(self, connection: Connection) -> RunStatus:
        from celeriac_storage.admitting import event_data

        data = event_data(self.name, self.data)
        return mailbox.send(connection, self.run_id, self.name, data, self.by, self.key)


@dataclass(slots=True)
class Retry(Operation[Retried]):
    """Let a run that needs attention try its step again, or another run the last step of one that
    has failed; of a plan, what is left of it. `first_step` as with `Start`."""

    run_id: RunId
    by: UserId
    first_step: FirstStep | None = None
    retry_id: RunId = field(default_factory=new_run_id)
    _forked: forks.Forked | None = field(default=None, init=False)

    def act(self, connection: Connection) -> Retried:
        self._forked = None
        if not forks.has_failed(connection, self.run_id):
            return Retried(self.run_id, resolving.retry(connection, self.run_id, self.by))
        is_published = self.first_step is not None
        if forks.has_plan(connection, self.run_id):
            self._forked = _retry_plan(
                connection, self.run_id, self.by, self.retry_id, None, is_published=is_published
            )
        else:
            spec = forks.ForkSpec(self.run_id, self.by, self.retry_id, is_published)
            self._forked = forks.retry(connection, spec)
        return Retried(self._forked.run_id, self._forked.started.status)

    def finish(self, transactions: Transactions) -> None:
        _publish(self._forked, self.first_step, transactions)


@dataclass(slots=True)
class Fork(Operation[Started]):
    """Start a run that goes on from before a step of another one. `first_step` as with `Start`."""

    run_id: RunId
    at: int
    by: UserId
    first_step: FirstStep | None = None
    fork_id: RunId = field(default_factory=new_run_id)
    thread_id: ThreadId = field(default_factory=new_thread_id)
    _forked: forks.Forked | None = field(default=None, init=False)

    def act(self, connection: Connection) -> Started:
        spec = forks.ForkSpec(self.run_id, self.by, self.fork_id, self.first_step is not None)
        self._forked = forks.fork(connection, spec, self.at, self.thread_id)
        started = self._forked.started
        return Started(self.fork_id, self.thread_id, started.status, started.phase)

    def finish(self, transactions: Transactions) -> None:
        _publish(self._forked, self.first_step, transactions)


def _publish(
    forked: forks.Forked | None, first_step: FirstStep | None, transactions: Transactions
) -> None:
    if forked is None or first_step is None or not forked.is_new:
        return
    if forked.started.status is RunStatus.QUEUED:
        first_step.publish(forked.run_id, forked.queue, transactions)


@dataclass(slots=True)
class RetryPlan(Operation[Started]):
    """Start the run that does what is left of a plan. `first_step` as with `Start`."""

    run_id: RunId
    by: UserId
    plan: "JsonValue" = None  # None: as it was
    first_step: FirstStep | None = None
    retry_id: RunId = field(default_factory=new_run_id)
    _forked: forks.Forked | None = field(default=None, init=False)

    def act(self, connection: Connection) -> Started:
        is_published = self.first_step is not None
        self._forked = forked = _retry_plan(
            connection, self.run_id, self.by, self.retry_id, self.plan, is_published=is_published
        )
        started = forked.started
        return Started(forked.run_id, forked.thread_id, started.status, started.phase)

    def finish(self, transactions: Transactions) -> None:
        _publish(self._forked, self.first_step, transactions)


def _retry_plan(
    connection: Connection,
    run_id: RunId,
    by: UserId,
    retry_id: RunId,
    plan: "JsonValue",
    *,
    is_published: bool,
) -> forks.Forked:
    # Here, because plans bring in what they are checked by.
    from celeriac_storage import plan_retries

    spec = plan_retries.PlanRetrySpec(run_id, by, retry_id, plan, is_published)
    return plan_retries.retry(connection, spec)


@dataclass(frozen=True, slots=True)
class Resolve(Operation[RunStatus]):
    run_id: RunId
    call_id: CallId
    resolution: Resolution
    by: UserId

    def act(self, connection: Connection) -> RunStatus:
        return resolving.resolve(connection, self.run_id, self.call_id, self.resolution, self.by)


@dataclass(slots=True)
class RollBack(Operation[Started]):
    """Start the run that undoes another one. `first_step` as with `Start`."""

    run_id: RunId
    from_step: int
    by: UserId
    first_step: FirstStep | None = None
    rollback_id: RunId = field(default_factory=new_run_id)
    thread_id: ThreadId = field(default_factory=new_thread_id)
    _status: RunStatus | None = field(default=None, init=False)
    _queue: str = field(default="", init=False)

    def act(self, connection: Connection) -> Started:
        started, self._queue = rollbacks.request(connection, self._spec())
        self._status = started.status
        return Started(self.rollback_id, self.thread_id, started.status, started.phase)

    def is_noted(self, refused: CeleriacError) -> bool:
        return isinstance(refused, NotAllowed)

    def note_refusal(self, connection: Connection, refused: CeleriacError) -> None:
        assert isinstance(refused, NotAllowed)
        rollbacks.record_denial(connection, self._spec(), refused)

    def finish(self, transactions: Transactions) -> None:
        if self.first_step is not None and self._status is RunStatus.QUEUED:
            self.first_step.publish(self.rollback_id, self._queue, transactions)

    def _spec(self) -> rollbacks.RollbackSpec:
        from celeriac_storage.admitting import word

        return rollbacks.RollbackSpec(
            self.run_id,
            self.from_step,
            self.by,
            self.rollback_id,
            self.thread_id,
            word(f"Roll back run {self.run_id} from step {self.from_step} on."),
            self.first_step is not None,
        )


@dataclass(frozen=True, slots=True)
class AddSchedule(Operation[Schedule]):
    """Add a schedule. The input is checked as that of a run is that starts now."""

    tenant_id: TenantId
    schedule_id: ScheduleId
    new: NewSchedule
    user_id: UserId
    by: UserId

    def act(self, connection: Connection) -> Schedule:
        from celeriac_storage.admitting import RunSpec, admit

        spec = RunSpec(
            self.new.agent,
            self.new.input,
            run_id=new_run_id(),
            thread_id=new_thread_id(),
            user_id=self.user_id,
            tenant_id=self.tenant_id,
        )
        checked = replace(self.new, input=admit(connection, spec).input)
        return schedules.add(
            connection, self.tenant_id, checked, self.schedule_id, self.user_id, self.by
        )


@dataclass(frozen=True, slots=True)
class ChangeSchedule(Operation[Schedule]):
    tenant_id: TenantId
    schedule_id: ScheduleId
    change: Literal["pause", "resume", "remove"]
    by: UserId

    def act(self, connection: Connection) -> Schedule:
        change = {
            "pause": schedules.pause,
            "resume": schedules.resume,
            "remove": schedules.remove,
        }[self.change]
        return change(connection, self.tenant_id, self.schedule_id, self.by)


@dataclass(frozen=True, slots=True)
class TriggerSchedule(Operation[ScheduleFire]):
    tenant_id: TenantId
    schedule_id: ScheduleId
    by: UserId

    def act(self, connection: Connection) -> ScheduleFire:
        from celeriac_storage import firing

        return firing.trigger(connection, self.tenant_id, self.schedule_id, self.by)


@dataclass(frozen=True, slots=True)
class Submit(Operation[RunStatus]):
    run_id: RunId
    results: Results
    by: UserId

    def act(self, connection: Connection) -> RunStatus:
        status = submitting.submit(connection, self.run_id, self.results, self.by)
        reach("submit.before_commit")
        return status

    def finish(self, transactions: Transactions) -> None:
        reach("submit.after_commit")

    def is_noted(self, refused: CeleriacError) -> bool:
        return isinstance(refused, UnknownCall | InvalidReceipt | Conflict)

    def note_refusal(self, connection: Connection, refused: CeleriacError) -> None:
        submitting.record_refusal(connection, self.run_id, self.results, self.by, refused)


@dataclass(frozen=True, slots=True)
class Decide(Operation[Decided]):
    tenant_id: TenantId
    approval_id: ApprovalId
    decision: Decision

    def act(self, connection: Connection) -> Decided:
        return deciding.decide(connection, self.tenant_id, self.approval_id, self.decision)

    def is_noted(self, refused: CeleriacError) -> bool:
        return not isinstance(refused, DatabaseUnavailable | UnknownApproval)

    def note_refusal(self, connection: Connection, refused: CeleriacError) -> None:
        deciding.record_denial(connection, self.tenant_id, self.approval_id, self.decision, refused)
