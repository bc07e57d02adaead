"""What clients ask to start a run."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from celeriac import traceparent
from celeriac.client.ask import Ask
from celeriac.client.first_step import FirstStep
from celeriac.client.named import user_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.request import Flow, post
from celeriac.client.run import read_started
from celeriac.errors import (
    CeleriacError,
    DatabaseUnavailable,
    InvalidInput,
    SchemaMismatch,
    WrongOwner,
)
from celeriac.ids import RunId, ThreadId, checked_id, new_run_id, new_thread_id
from celeriac.limits import Limits
from celeriac.reports import Started
from celeriac.schemas import strict_json
from celeriac.states import RunStatus
from celeriac_storage import starting
from celeriac_storage.database import sqlstate
from celeriac_storage.new_run import OnBusy
from celeriac_storage.tenancy import Transactions

if TYPE_CHECKING:
    from celeriac.agent import Agent
    from celeriac.client.database import DatabaseDesk
    from celeriac.codec import JsonValue
    from celeriac_storage.admitting import RunSpec

UNDEFINED_TABLE = "42P01"


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


def start(
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
) -> Ask[Started]:
    """Start a run of `agent`, given as an `Agent` or by the name a worker registered.

    `thread_id` names a conversation of the user's, which begins with its first run; without one,
    the run gets a new thread to itself. If another run of the thread is active, the new one waits
    its turn, or is refused with `on_busy="reject"`. With "say" no run is started: the input is told
    to the active run, or to one that waits for its user, and that run is returned. A `run_id` of
    your own makes it safe to start the run again after an error: it never runs twice, and what was
    said instead of it is not said again. Outside the tenant `default` it has the form
    `NAME@TENANT`.

    With `connection`, a SQLAlchemy connection in a transaction (a Session's is
    `session.connection()`), the run is written in that transaction and exists only if you
    commit it. After an error raised here nothing was written, and the transaction can still be
    used. Over HTTP there is no `connection`, and `user_id` defaults to the token's user.

    With `start_at`, or a `delay` from now by the database's clock, the run is `paused` until then,
    and only then takes its turn in its thread. A `deadline`, either a time or how long after that,
    ends the run wherever it is, unless it needs a person's attention: it is `failed`, with the
    outcome `limit_exceeded` (docs/time.md).

    The input is checked before anything is written. Raises `InvalidInput`, `UnknownAgent`,
    `RunExists`, `WrongOwner` or `ThreadBusy`. An attempt to use another user's thread is recorded
    in `audit`, unless it was made in your own transaction. A broker that is down is no error: the
    run is accepted, and the scheduler publishes it.
    """
    run = RunId(checked_id(run_id, "run id")) if run_id is not None else new_run_id()
    thread = None if thread_id is None else ThreadId(checked_id(thread_id, "thread id"))
    user = None if user_id is None else user_named(user_id)

    def in_database(desk: "DatabaseDesk") -> Started:
        # Here, because messages bring in pydantic-ai: a second that reading a run need not wait.
        from celeriac_storage.admitting import RunSpec

        spec = RunSpec(
            agent,
            input,
            run_id=run,
            thread_id=new_thread_id() if thread is None else thread,
            user_id=user_or_default(user),
            tenant_id=desk.tenant_id,
            on_busy=on_busy,
            limits=limits,
            start_at=start_at,
            delay=delay,
            deadline=deadline,
            is_published=desk.first_step is not None and connection is None,
            traceparent=traceparent.current(),
        )
        return _start_alone(desk, spec) if connection is None else _start_within(connection, spec)

    def over_http() -> Flow[Started]:
        if connection is not None:
            raise InvalidInput(
                "over HTTP a run cannot be started in a transaction of yours; use a Client of the "
                "database for that"
            )
        name, value = _named(agent, input)
        body: dict[str, JsonValue] = {
            "agent": name,
            "input": value,
            "run_id": run,
            "thread_id": thread,
            "user_id": user,
            "on_busy": on_busy,
            "limits": None if limits is None else limits.to_json(),
            "start_at": None if start_at is None else start_at.isoformat(),
            "delay_seconds": None if delay is None else delay.total_seconds(),
        }
        if isinstance(deadline, timedelta):
            body["deadline_seconds"] = deadline.total_seconds()
        elif deadline is not None:
            body["deadline"] = deadline.isoformat()
        return read_started((yield post("/v1/runs", body, if_lost=_if_lost(run))))

    return Ask(in_database, over_http)


def _named(agent: "str | Agent", value: object) -> "tuple[str, JsonValue]":
    """The agent's name, and the input as the agent's own code takes it, if that is at hand."""
    if isinstance(agent, str):
        return agent, strict_json(value)
    return agent.name, agent.validate_input(value)


def _start_alone(desk: "DatabaseDesk", spec: "RunSpec") -> Started:
    if desk.first_step is not None:
        desk.first_step.prepare()
    start = Start(spec, desk.first_step)
    try:
        return desk.perform(start)
    except DatabaseUnavailable as lost:
        if not start.is_written:
            raise  # what was not committed is gone
        raise DatabaseUnavailable(
            f"{lost}. The connection broke at the commit. {_if_lost(spec.run_id)}"
        ) from lost


def _if_lost(run_id: RunId) -> str:
    return (
        f"It is not known whether run {run_id} was accepted: `celeriac show {run_id}` tells, and "
        "starting it again under this id never makes two of it"
    )


def _start_within(connection: object, spec: "RunSpec") -> Started:
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
            return Start(spec).act(connection)
    except ProgrammingError as error:
        if sqlstate(error) != UNDEFINED_TABLE:
            raise
        raise SchemaMismatch(
            "the database of this connection has no Celeriac tables: run `celeriac migrate` on it, "
            "or give a connection to the database that has them"
        ) from error
