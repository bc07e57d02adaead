"""The client: starts runs, watches them, and tells them what people decide.

with Client("postgresql://localhost/shop", "redis://localhost:6379/0") as client:
    started = client.start("order-desk", {"order_id": "O-1001", "sku": "A-7", "quantity": 1})
    run = client.wait(started.run_id)
    print(run.status, run.result)
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from celeriac.client import people
from celeriac.client.first_step import FirstStep
from celeriac.client.memories import Forget, Remember, export
from celeriac.client.operations import (
    AddSchedule,
    Answer,
    Cancel,
    ChangeSchedule,
    Decide,
    Interrupt,
    Operation,
    Resolve,
    Retry,
    RollBack,
    Say,
    Start,
    Submit,
    TriggerSchedule,
    perform,
)
from celeriac.client.watching import Watching
from celeriac.errors import (
    DatabaseUnavailable,
    InvalidInput,
    SchemaMismatch,
    UnknownApproval,
    UnknownCall,
    UnknownRun,
)
from celeriac.ids import (
    DEFAULT_TENANT,
    DEFAULT_USER,
    ApprovalId,
    CallId,
    RunId,
    ScheduleId,
    ThreadId,
    UserId,
    checked_id,
    is_id,
    new_run_id,
    new_thread_id,
)
from celeriac.limits import Limits
from celeriac.memory.candidate import DEFAULT_NAMESPACE, MemoryKind, checked_key
from celeriac.principal import Permissions
from celeriac.reports import (
    Approval,
    Decided,
    Event,
    Memory,
    MemoryDecision,
    MemoryExport,
    Principal,
    Remembered,
    RequestedCall,
    Run,
    RunLine,
    Schedule,
    ScheduleFire,
    Started,
    Wait,
    Worker,
)
from celeriac.schedule import NewSchedule
from celeriac.schemas import strict_json
from celeriac.settings import load_settings
from celeriac.states import RunStatus
from celeriac.workspace.receipts import Receipt
from celeriac_storage import inbox, memories, reading, schedules, submitting
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.resolving import NotDone, Resolution, TookEffect
from celeriac_storage.rulings import Approve, Decision, Edit, Reject
from celeriac_storage.schema import check_schema
from celeriac_storage.starting import OnBusy
from celeriac_storage.submitting import Failed, Result

if TYPE_CHECKING:
    from celeriac.agent import Agent
    from celeriac_storage.admitting import Wish

__all__ = ["Client", "Failed", "NewSchedule", "NotDone", "Receipt", "Result", "TookEffect"]

UNDEFINED_TABLE = "42P01"


class Client:
    """Talks to one Celeriac database. Thread-safe; connects at first use; close it, or use `with`.

    Without a `broker_url` it publishes nothing and leaves that to a scheduler, which hears of a new
    run at its commit; with one, a run starts a little sooner. Every method may raise
    `DatabaseUnavailable` and `SchemaMismatch`.
    """

    def __init__(self, database_url: str, broker_url: str | None = None) -> None:
        """Raises `InvalidInput` for a URL that cannot be used."""
        self._settings = load_settings(database_url=database_url, broker_url=broker_url)
        self._database = Database(
            database_url, application_name=lambda: "celeriac-client", pre_ping=True
        )
        self._is_schema_checked = False
        self._watching = Watching(self._ready, broker_url)
        self._first_step = FirstStep(self._settings) if broker_url is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. The client may be used again and then opens new ones."""
        if self._first_step is not None:
            self._first_step.close()
        self._database.close()

    def start(
        self,
        agent: "str | Agent",
        input: object,  # noqa: A002 - the word of the interface
        *,
        thread_id: str | None = None,
        user_id: str | None = None,
        run_id: str | None = None,
        on_busy: OnBusy = "wait",
        limits: Limits | None = None,
        start_at: datetime | None = None,
        delay: timedelta | None = None,
        deadline: datetime | timedelta | None = None,
        connection: Connection | None = None,
    ) -> Started:
        """Start a run of `agent`, given as an `Agent` or by the name a worker registered.

        `thread_id` names a conversation of the user's, made at its first run; without one the run
        has a new thread for itself. In a thread whose run is active, the new run waits its turn, or
        with `on_busy="reject"` is refused. With "say" there is no new run: the input is told to the
        active one, or to one that waits for its user, and what is returned is that run's. A
        `run_id` of your own makes it safe to start the run again after an error: it never runs
        twice, and what was said instead of it is not said again.

        With `connection`, a SQLAlchemy connection in a transaction (a Session's is
        `session.connection()`), the run is written in that transaction and exists only if you
        commit it. After an error here the transaction can still be used; nothing was written.

        With `start_at`, or a `delay` from now by the database's clock, the run is `paused` until
        then, and takes its turn in its thread only then. A `deadline`, a time or how long after
        that, ends the run wherever it is, unless it needs a person's attention: `failed`, with the
        outcome `limit_exceeded` (docs/time.md).

        The input is checked before anything is written. Raises `InvalidInput`, `UnknownAgent`,
        `RunExists`, `WrongOwner` or `ThreadBusy`. That another user's thread was asked for is
        recorded in `audit`, unless in your own transaction. A broker that is away is no error: the
        run is accepted, and published by the scheduler.
        """
        # Here, because messages bring in pydantic-ai: a second that reading a run need not wait.
        from celeriac_storage.admitting import Wish

        wish = Wish(
            agent,
            input,
            run_id=RunId(checked_id(run_id, "run id")) if run_id is not None else new_run_id(),
            thread_id=(
                ThreadId(checked_id(thread_id, "thread id"))
                if thread_id is not None
                else new_thread_id()
            ),
            user_id=user_or_default(user_id),
            on_busy=on_busy,
            limits=limits,
            start_at=start_at,
            delay=delay,
            deadline=deadline,
            is_published=self._first_step is not None and connection is None,
        )
        if connection is not None:
            return _start_within(connection, wish)
        return self._start_alone(wish)

    def get(self, run_id: str) -> Run:
        """The run with its steps and effects, as of one moment. Raises `UnknownRun`."""
        with self._ready().begin() as connection:
            return reading.read_run(connection, _run(run_id))

    def runs(
        self, *, status: RunStatus | None = None, agent: str | None = None, limit: int = 50
    ) -> list[RunLine]:
        """The newest runs first, at most `limit` of them, of that status and that agent."""
        with self._ready().connect() as connection:
            return reading.list_runs(connection, status=status, agent=agent, limit=limit)

    def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> Iterator[Event]:
        """The run's events with a `seq` above `after`, in order and without a gap.

        With `follow` it waits for those still to come and ends after the terminal one. Raises
        `UnknownRun` at once.
        """
        self._watching.position(_run(run_id))
        return self._watching.events(_run(run_id), after, follow=follow)

    def wait(
        self, run_id: str, timeout_seconds: float | None = None, *, until_ended: bool = False
    ) -> Run:
        """Wait until the run has ended or needs a person's attention, and return it.

        With `until_ended` it waits on while the run needs attention, for somebody else to settle
        it. A pause (for a timer, a worker, its thread …) is always waited out. Raises
        `TimeoutError`, which leaves the run as it is, and `UnknownRun`. A database that is away is
        borne for half a minute.
        """
        for _ in self._watching.positions(
            _run(run_id), timeout_seconds=timeout_seconds, until_ended=until_ended
        ):
            pass
        return self._watching.run(_run(run_id))

    def watch(self, run_id: str, timeout_seconds: float | None = None) -> Iterator[Run]:
        """The run now and after each change, until it has ended or needs a person's attention.

        Pauses, and what raises, are as in `wait`.
        """
        for _ in self._watching.positions(_run(run_id), timeout_seconds=timeout_seconds):
            yield self._watching.run(_run(run_id))

    def waits_for(self, run_id: str) -> Wait:
        """What a run that nobody works on just now waits for. Raises `UnknownRun`."""
        with self._ready().connect() as connection:
            return reading.read_wait(connection, _run(run_id))

    def cancel(self, run_id: str, *, by: str | None = None) -> RunStatus:
        """Cancel the run, and return where it stands now.

        `cancelled` if nobody works on it just now; else `running`, and it ends when the step in
        progress is recorded. Asking again changes nothing. Raises `UnknownRun`, or `Conflict` if it
        has ended otherwise.
        """
        return self._perform(Cancel(_run(run_id), user_or_default(by)))

    def interrupt(self, run_id: str, *, by: str | None = None) -> RunStatus:
        """Stop the run until its user says something or it is cancelled; where it stands now.

        `paused` if nobody works on it just now; else `running`: a request to the model is cancelled
        within a second, a tool's call is seen to its end and recorded. Calls that nobody has begun
        are not made any more once the user has said something; the model is told so. Asking again
        changes nothing. Raises `UnknownRun` or `Conflict`.
        """
        return self._perform(Interrupt(_run(run_id), user_or_default(by)))

    def say(
        self, run_id: str, text: str, *, by: str | None = None, key: str | None = None
    ) -> RunStatus:
        """Tell the run's model something, and return where the run stands now.

        The model is told once and in order, when it is asked next: after the results of the calls
        that it has asked for, and instead of the run's end if it has just given its last answer. A
        run that waits for its user goes on. With a `key` of your own, such as a UUID, it is safe to
        say it again after an error: it is told once. Raises `UnknownRun`, `InvalidInput`, or
        `Conflict` if the run has ended, or was told something else under the key.
        """
        if key is not None:
            key = inbox.key_of_word(_run(run_id), checked_id(key, "key"))
        return self._perform(Say(_run(run_id), text, user_or_default(by), key))

    def requested_calls(
        self, run_id: str | None = None, *, limit: int = 100
    ) -> list[RequestedCall]:
        """The calls that another process is to execute, of that run or of all, the oldest first.

        They stay in the list until their results are submitted: whoever executes them gives `key`
        to the target, or remembers it, and so does none of them twice.
        """
        with self._ready().connect() as connection:
            return submitting.requested_calls(
                connection, None if run_id is None else _run(run_id), limit
            )

    def submit(
        self,
        run_id: str,
        results: Mapping[str, Result],
        *,
        by: str | None = None,
    ) -> RunStatus:
        """Tell the results of calls that another process has executed, by call id, and return where
        the run stands now. All of them are recorded, or none is.

        A result is any JSON, or `Failed(message)`; of a call that changes files, a `Receipt`
        (`celeriac.workspace.receipts`) that says either. With the last one that it waits for, the
        run goes on; if the files were not as the run had left them, it goes to a person. To submit
        the same again is no error; what is there is never replaced. Raises `UnknownRun`,
        `UnknownCall`, `InvalidReceipt`, or `Conflict` for another result than the one that is
        there, a call that is not requested, and a run that has ended; the refusal is recorded.
        """
        told = {_call(call_id): result for call_id, result in results.items()}
        return self._perform(Submit(_run(run_id), told, user_or_default(by)))

    def resolve(
        self, run_id: str, call_id: str, resolution: Resolution, *, by: str | None = None
    ) -> RunStatus:
        """Say what came of a call whose outcome is `unknown`, and return where the run stands now.

        `TookEffect(result)`: the model is told the result. `NotDone()`: the call changed nothing
        and is made again with the same idempotency key. The run goes on; one that was cancelled
        meanwhile stays so. Raises `UnknownRun`, `UnknownCall` or `Conflict`; that also for
        `NotDone()` if the worker that made the call has told that it took effect.
        """
        return self._perform(Resolve(_run(run_id), _call(call_id), resolution, user_or_default(by)))

    def retry(self, run_id: str, *, by: str | None = None) -> RunStatus:
        """Let a run in `needs_attention` try its step again. Raises `UnknownRun`, or `Conflict` if
        it needs none, or if the outcome of a call must be resolved first."""
        return self._perform(Retry(_run(run_id), user_or_default(by)))

    def rollback(self, run_id: str, from_step: int = 0, *, by: str | None = None) -> Started:
        """Undo what the run did, from that step on: start a run that takes its calls back, the
        latest first, each as its tool declares (`celeriac.rollback`).

        The result of that run is `{"undone": [...], "compensated": [...], "not_undone": [...]}`,
        each a list of `{"call_id", "tool"}`, the last with a `"why"`; and, if something could be
        undone only in part, `"partly_undone"` with the undo's own `"report"`. It needs a person's
        attention where only people can undo a call, and where an undo failed: `resolve` and `retry`
        let it go on. What is undone already is left alone.

        Raises `UnknownRun`; `InvalidInput` for a step that the run has not; `NotAllowed` if a call
        needed a decision that `by` may not take; `Conflict` while the run goes on, while another
        rollback of it does, while the outcome of a call is unknown, or if nothing is left to undo.
        """
        return self._perform(
            RollBack(_run(run_id), from_step, user_or_default(by), self._first_step)
        )

    def approvals(
        self,
        *,
        status: str | None = "pending",
        run_id: str | None = None,
        limit: int = 100,
        by: str | None = None,
    ) -> list[Approval]:
        """The proposals that wait for a person, or those of another status (None: of any), the
        oldest first. That `by` was shown the pending ones is recorded: nobody can decide what
        nobody was shown.
        """
        return people.show_approvals(
            self._ready(),
            DEFAULT_TENANT,
            status=status,
            run_id=None if run_id is None else _run(run_id),
            limit=limit,
            to=user_or_default(by),
        )

    def approval(self, approval_id: str, *, by: str | None = None) -> Approval:
        """One proposal, which `by` is shown. Raises `UnknownApproval`."""
        return people.show_approval(
            self._ready(), DEFAULT_TENANT, _proposal(approval_id), user_or_default(by)
        )

    def approve(
        self,
        approval_id: str,
        *,
        by: str | None = None,
        hash: str | None = None,  # noqa: A002 - the word of the interface
        reason: str = "",
        answers: Mapping[str, str] | None = None,
    ) -> Decided:
        """Approve exactly this version of the call: the id names it, and so does the
        `arguments_hash` that was shown, if given. `answers` are those to the checklist's questions.

        With the last approval that it needs, the run goes on; before the call everything is checked
        once more. Raises `UnknownApproval`, `DecisionRefused`, `NotAllowed` or `InvalidDecision`,
        after recording that the decision was refused; the proposal is then as before.
        """
        return self._decide(
            approval_id, Decision(Approve(), user_or_default(by), hash, reason, answers or {})
        )

    def edit(
        self,
        approval_id: str,
        arguments: "str | Mapping[str, object]",
        *,
        by: str | None = None,
        hash: str | None = None,  # noqa: A002 - the word of the interface
        reason: str = "",
        answers: Mapping[str, str] | None = None,
    ) -> Decided:
        """Propose other arguments, all of them, as an object or its JSON text, and approve them, if
        the approval of `by` is enough for them; else the new version waits for others.

        Raises as `approve`, and `InvalidArguments` for what the tool or its policy does not take.
        """
        choice = Edit(arguments)
        return self._decide(
            approval_id, Decision(choice, user_or_default(by), hash, reason, answers or {})
        )

    def reject(
        self,
        approval_id: str,
        reason: str,
        *,
        by: str | None = None,
        hash: str | None = None,  # noqa: A002 - the word of the interface
    ) -> Decided:
        """Reject the call. It is never executed; the model is told the reason, or the run ends, as
        the tool's policy says. Raises as `approve`."""
        return self._decide(approval_id, Decision(Reject(), user_or_default(by), hash, reason))

    def add_schedule(
        self,
        schedule_id: str,
        new: NewSchedule,
        *,
        user_id: str | None = None,
        by: str | None = None,
    ) -> Schedule:
        """Start runs of an agent, for `user_id`, at the times of a cron expression (docs/time.md).

        The name is yours to choose. Raises `InvalidInput`, `UnknownAgent`, or `Conflict` if the
        name is taken.
        """
        who = user_or_default(by)
        return self._perform(
            AddSchedule(
                DEFAULT_TENANT,
                ScheduleId(checked_id(schedule_id, "schedule's name")),
                new,
                who if user_id is None else UserId(checked_id(user_id, "user id")),
                who,
            )
        )

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        with self._ready().connect() as connection:
            return schedules.list_schedules(connection, DEFAULT_TENANT)

    def schedule(self, schedule_id: str) -> Schedule:
        """One schedule. Raises `UnknownSchedule`."""
        with self._ready().connect() as connection:
            return schedules.read(connection, DEFAULT_TENANT, _schedule(schedule_id))

    def pause_schedule(self, schedule_id: str, *, by: str | None = None) -> Schedule:
        """Let no time of it count until it is resumed. Raises `UnknownSchedule`."""
        return self._change_schedule(schedule_id, "pause", by)

    def resume_schedule(self, schedule_id: str, *, by: str | None = None) -> Schedule:
        """Let it go on with its next time; none is caught up. Raises `UnknownSchedule`."""
        return self._change_schedule(schedule_id, "resume", by)

    def remove_schedule(self, schedule_id: str, *, by: str | None = None) -> Schedule:
        """End the schedule; runs that it has started go on. Raises `UnknownSchedule`."""
        return self._change_schedule(schedule_id, "remove", by)

    def trigger_schedule(self, schedule_id: str, *, by: str | None = None) -> ScheduleFire:
        """Do now what it does at its times, as its overlap policy says; what came of it.

        Raises `UnknownSchedule`.
        """
        return self._perform(
            TriggerSchedule(DEFAULT_TENANT, _schedule(schedule_id), user_or_default(by))
        )

    def _change_schedule(
        self, schedule_id: str, change: Literal["pause", "resume", "remove"], by: str | None
    ) -> Schedule:
        return self._perform(
            ChangeSchedule(DEFAULT_TENANT, _schedule(schedule_id), change, user_or_default(by))
        )

    def principals(self) -> list[Principal]:
        """The persons whose roles and limits are known."""
        return people.list_principals(self._ready())

    def set_principal(
        self,
        user_id: str,
        *,
        roles: Sequence[str] = (),
        permissions: Permissions | None = None,
        disabled: bool = False,
        by: str | None = None,
    ) -> Principal:
        """Say what a person may decide, instead of what was said before.

        `permissions`: by the name of a tool, or `*` for all others, conditions that the arguments
        must fulfil; a tool that is not there may not be decided. Without it there are no limits. A
        call that starts after this returns is checked against it, even if it was approved before.
        """
        return people.set_principal(
            self._ready(),
            UserId(checked_id(user_id, "user id")),
            roles,
            {"*": ()} if permissions is None else permissions,
            is_disabled=disabled,
            by=user_or_default(by),
        )

    def memories(
        self,
        user_id: str,
        *,
        namespace: str | None = None,
        query: str = "",
        limit: int = 100,
    ) -> list[Memory]:
        """What is remembered of the user, the latest first; in that namespace, and with a word of
        `query`."""
        with self._ready().connect() as connection:
            return memories.list_memories(
                connection,
                DEFAULT_TENANT,
                user_or_default(user_id),
                namespace=namespace,
                query=query,
                limit=limit,
            )

    def memory(self, key: str, *, user_id: str, namespace: str = DEFAULT_NAMESPACE) -> Memory:
        """What is remembered under the key. Raises `UnknownMemory`."""
        with self._ready().connect() as connection:
            return memories.read(
                connection, DEFAULT_TENANT, user_or_default(user_id), namespace, key
            )

    def remember(
        self,
        key: str,
        value: object,
        *,
        user_id: str,
        kind: str = MemoryKind.SEMANTIC,
        namespace: str = DEFAULT_NAMESPACE,
        replaces_version: int | None = None,
        expires_days: float | None = None,
        by: str | None = None,
    ) -> Remembered:
        """Put in something to remember of the user, for the default `MemoryPolicy` to decide about;
        what it decided. A memory that is there is replaced only by its version. What is procedural
        is refused here: agents propose that, and people decide by `approve`.
        """
        return self._perform(
            Remember(
                DEFAULT_TENANT,
                user_or_default(user_id),
                checked_key(namespace, "namespace"),
                key,
                strict_json(value),
                kind,
                user_or_default(by),
                replaces_version,
                expires_days,
            )
        )

    def forget(
        self,
        key: str,
        *,
        user_id: str,
        namespace: str = DEFAULT_NAMESPACE,
        by: str | None = None,
    ) -> None:
        """Delete what is remembered of the user under the key. No later model call is shown it. The
        conversations in which it was said stay as they are. Raises `UnknownMemory`."""
        self._perform(
            Forget(DEFAULT_TENANT, user_or_default(user_id), namespace, key, user_or_default(by))
        )

    def memory_decisions(
        self,
        user_id: str,
        *,
        store: bool | None = None,
        run_id: str | None = None,
        limit: int = 100,
    ) -> list[MemoryDecision]:
        """What was decided about candidates of the user's, the latest first: all, or those that
        were kept or were not, or those of one run."""
        with self._ready().connect() as connection:
            return memories.list_decisions(
                connection,
                DEFAULT_TENANT,
                user_or_default(user_id),
                store=store,
                run_id=None if run_id is None else _run(run_id),
                limit=limit,
            )

    def export_memories(self, user_id: str) -> MemoryExport:
        """All that is remembered of the user, with what was decided about it, as of one moment."""
        with self._ready().begin() as connection:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return export(connection, DEFAULT_TENANT, user_or_default(user_id))

    def workers(self) -> list[Worker]:
        """The live workers and the ones that left last, each with the runs it holds."""
        with self._ready().connect() as connection:
            return reading.list_workers(connection)

    def _decide(self, approval_id: str, decision: Decision) -> Decided:
        return self._perform(Decide(DEFAULT_TENANT, _proposal(approval_id), decision))

    def _perform(self, operation: Operation[Answer]) -> Answer:
        return perform(self._ready(), operation)

    def _ready(self) -> Database:
        if not self._is_schema_checked:
            check_schema(self._database)
            self._is_schema_checked = True
        return self._database

    def _start_alone(self, wish: "Wish") -> Started:
        if self._first_step is not None:
            self._first_step.prepare()
        start = Start(wish, self._first_step)
        try:
            return self._perform(start)
        except DatabaseUnavailable as lost:
            if not start.is_written:
                raise  # what was not committed is gone
            raise DatabaseUnavailable(
                f"{lost}. The connection broke at the commit, so it is not known whether run "
                f"{wish.run_id} was accepted: `celeriac show {wish.run_id}` tells, and starting it "
                "again under this id never makes two of it"
            ) from lost


def user_or_default(user_id: str | None) -> UserId:
    """Who says so, where it need not be said. Raises `InvalidInput` for what is no id."""
    return DEFAULT_USER if user_id is None else UserId(checked_id(user_id, "user id"))


def _run(run_id: str) -> RunId:
    if not is_id(run_id):
        raise UnknownRun(f"there is no run {run_id!r}; `celeriac runs` lists the latest")
    return RunId(run_id)


def _call(call_id: str) -> CallId:
    if not is_id(call_id):
        raise UnknownCall(f"there is no call {call_id!r}; `celeriac show RUN` names those of a run")
    return CallId(call_id)


def _schedule(schedule_id: str) -> ScheduleId:
    if not is_id(schedule_id):
        raise schedules.unknown_schedule(schedule_id)
    return ScheduleId(schedule_id)


def _proposal(approval_id: str) -> ApprovalId:
    if not is_id(approval_id):
        raise UnknownApproval(
            f"there is no proposal {approval_id!r}; `celeriac approvals` lists those that wait"
        )
    return ApprovalId(approval_id)


def _start_within(connection: object, wish: "Wish") -> Started:
    """Start the run in the caller's transaction, leaving that usable whatever happens here."""
    if not isinstance(connection, Connection):
        raise InvalidInput(
            f"connection is a {type(connection).__qualname__}; give a sqlalchemy.Connection, which "
            "of a Session is session.connection()"
        )
    driver: Any = connection.connection.dbapi_connection
    if getattr(driver, "autocommit", False):
        raise InvalidInput(
            "the connection is in autocommit mode, where nothing can be started together with your "
            "own writes; give one in a transaction, or none"
        )
    try:
        with connection.begin_nested():
            return Start(wish).act(connection)
    except ProgrammingError as error:
        if sqlstate(error) != UNDEFINED_TABLE:
            raise
        raise SchemaMismatch(
            "the database of this connection has no Celeriac tables: run `celeriac migrate` on it, "
            "or give a connection to the database that has them"
        ) from error
