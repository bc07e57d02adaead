"""The client: starts runs, watches them, and tells them what people decide.

with Client("postgresql://localhost/shop", "redis://localhost:6379/0") as client:
    started = client.start("order-desk", {"order_id": "O-1001", "sku": "A-7", "quantity": 1})
    run = client.wait(started.run_id)
    print(run.status, run.result)
"""

import logging
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from sqlalchemy import Connection
from sqlalchemy.exc import ProgrammingError

from celeriac.client.watching import Watching
from celeriac.errors import BrokerUnavailable, DatabaseUnavailable, InvalidInput, SchemaMismatch
from celeriac.ids import (
    DEFAULT_USER,
    CallId,
    RunId,
    ThreadId,
    UserId,
    checked_id,
    new_run_id,
    new_thread_id,
)
from celeriac.limits import Limits
from celeriac.reports import Event, Run, RunLine, Started, Wait, Worker
from celeriac.settings import load_settings
from celeriac.states import RunStatus
from celeriac_storage import dispatch, reading, requests, resolving, starting
from celeriac_storage.database import Database, sqlstate
from celeriac_storage.resolving import NotDone, Resolution, TookEffect
from celeriac_storage.schema import check_schema
from celeriac_storage.starting import OnBusy

if TYPE_CHECKING:
    from celeriac.agent import Agent
    from celeriac_storage.admitting import Wish
    from celeriac_tasks.publisher import Publisher

__all__ = ["Client", "NotDone", "TookEffect"]

logger = logging.getLogger(__name__)

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
        self._has_broker = broker_url is not None
        self._database = Database(
            database_url, application_name=lambda: "celeriac-client", pre_ping=True
        )
        self._is_schema_checked = False
        self._watching = Watching(self._ready, broker_url)
        self._publisher: Publisher | None = None

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
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
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
        connection: Connection | None = None,
    ) -> Started:
        """Start a run of `agent`, given as an `Agent` or by the name a worker registered.

        `thread_id` names a conversation of the user's, made at its first run; without one the run
        has a new thread for itself. In a thread whose run is active, the new run waits its turn, or
        with `on_busy="reject"` is refused. A `run_id` of your own makes it safe to start the run
        again after an error: it never runs twice.

        With `connection`, a SQLAlchemy connection in a transaction (a Session's is
        `session.connection()`), the run is written in that transaction and exists only if you
        commit it. After an error here the transaction can still be used; nothing was written.

        The input is checked before anything is written. Raises `InvalidInput`, `UnknownAgent`,
        `RunExists`, `WrongOwner` or `ThreadBusy`. A broker that is away is no error: the run is
        accepted, and published by the scheduler.
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
            user_id=_user(user_id),
            on_busy=on_busy,
            limits=limits,
            is_published=self._has_broker and connection is None,
        )
        if connection is not None:
            return _start_within(connection, wish)
        return self._start_alone(wish)

    def get(self, run_id: str) -> Run:
        """The run with its steps and effects, as of one moment. Raises `UnknownRun`."""
        with self._ready().begin() as connection:
            return reading.read_run(connection, RunId(run_id))

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
        self._watching.position(RunId(run_id))
        return self._watching.events(RunId(run_id), after, follow=follow)

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
            RunId(run_id), timeout_seconds=timeout_seconds, until_ended=until_ended
        ):
            pass
        return self._watching.run(RunId(run_id))

    def watch(self, run_id: str) -> Iterator[Run]:
        """The run now and after each change, until it has ended or needs a person's attention."""
        for _ in self._watching.positions(RunId(run_id)):
            yield self._watching.run(RunId(run_id))

    def waits_for(self, run_id: str) -> Wait:
        """What a run that nobody works on just now waits for. Raises `UnknownRun`."""
        with self._ready().connect() as connection:
            return reading.read_wait(connection, RunId(run_id))

    def cancel(self, run_id: str, *, by: str | None = None) -> RunStatus:
        """Cancel the run, and return where it stands now.

        `cancelled` if nobody works on it just now; else `running`, and it ends when the step in
        progress is recorded. Asking again changes nothing. Raises `UnknownRun`, or `Conflict` if it
        has ended otherwise.
        """
        with self._ready().begin() as connection:
            return requests.request_cancel(connection, RunId(run_id), _user(by))

    def resolve(
        self, run_id: str, call_id: str, resolution: Resolution, *, by: str | None = None
    ) -> RunStatus:
        """Say what came of a call whose outcome is `unknown`, and return where the run stands now.

        `TookEffect(result)`: the model is told the result. `NotDone()`: the call changed nothing
        and is made again with the same idempotency key. The run goes on; one that was cancelled
        meanwhile stays so. Raises `UnknownRun`, `UnknownCall` or `Conflict`.
        """
        with self._ready().begin() as connection:
            return resolving.resolve(
                connection, RunId(run_id), CallId(call_id), resolution, _user(by)
            )

    def retry(self, run_id: str, *, by: str | None = None) -> RunStatus:
        """Let a run in `needs_attention` try its step again. Raises `UnknownRun`, or `Conflict` if
        it needs none, or if the outcome of a call must be resolved first."""
        with self._ready().begin() as connection:
            return resolving.retry(connection, RunId(run_id), _user(by))

    def workers(self) -> list[Worker]:
        """The live workers and the ones that left last, each with the runs it holds."""
        with self._ready().connect() as connection:
            return reading.list_workers(connection)

    def _ready(self) -> Database:
        if not self._is_schema_checked:
            check_schema(self._database)
            self._is_schema_checked = True
        return self._database

    def _start_alone(self, wish: "Wish") -> Started:
        publisher = self._made_publisher()
        is_written = False
        try:
            with self._ready().begin() as connection:
                started, queue = _admit_and_start(connection, wish)
                is_written = True
        except DatabaseUnavailable as lost:
            if not is_written:
                raise  # what was not committed is gone
            raise DatabaseUnavailable(
                f"{lost}. The connection broke at the commit, so it is not known whether run "
                f"{wish.run_id} was accepted: `celeriac show {wish.run_id}` tells, and starting it "
                "again under this id never makes two of it"
            ) from lost
        if publisher is not None and started.status is RunStatus.QUEUED:
            self._publish(publisher, started.run_id, queue)
        return started

    def _made_publisher(self) -> "Publisher | None":
        if self._has_broker and self._publisher is None:
            from celeriac_tasks.celery_app import make_app
            from celeriac_tasks.publisher import Publisher

            self._publisher = Publisher(make_app(self._settings))
        return self._publisher

    def _publish(self, publisher: "Publisher", run_id: RunId, queue: str) -> None:
        try:
            publisher.publish(run_id, 0, queue)
        except BrokerUnavailable as error:
            logger.warning("run %s is left to the scheduler: %s", run_id, error)
            with self._database.connect() as connection:
                dispatch.mark_unpublished(connection, run_id, 0)


def _user(user_id: str | None) -> UserId:
    return DEFAULT_USER if user_id is None else UserId(checked_id(user_id, "user id"))


def _admit_and_start(connection: Connection, wish: "Wish") -> tuple[Started, str]:
    from celeriac_storage.admitting import admit

    new = admit(connection, wish)
    started = starting.start(connection, new)
    return Started(new.run_id, new.thread_id, started.status, started.phase), new.queue


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
            started, _ = _admit_and_start(connection, wish)
            return started
    except ProgrammingError as error:
        if sqlstate(error) != UNDEFINED_TABLE:
            raise
        raise SchemaMismatch(
            "the database of this connection has no Celeriac tables: run `celeriac migrate` on it, "
            "or give a connection to the database that has them"
        ) from error
