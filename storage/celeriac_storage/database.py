"""One process's connections to PostgreSQL."""

import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from sqlalchemy import Connection, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, ResourceClosedError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import ConnectionPoolEntry

from celeriac import codec
from celeriac.errors import DatabaseUnavailable, InvalidInput
from celeriac.ids import RunId
from celeriac.secrets import redact, redact_url
from celeriac_storage import news

OLDEST_SERVER = 150000  # PostgreSQL 15, as pg's server_version_num
CONNECT_TIMEOUT_SECONDS = 5
POOL_TIMEOUT_SECONDS = 30
IDLE_IN_TRANSACTION = "25P03"
"""The server ended a session because it sat idle in a transaction: the client's fault, no
outage.
"""

# A peer that vanished without a reset must not hold a step: the kernel gives up after about five
# seconds, whether we wait for an answer (user timeout) or are idle (keepalive).
TCP_OPTIONS: dict[str, Any] = {
    "keepalives": "1",
    "keepalives_idle": "3",
    "keepalives_interval": "1",
    "keepalives_count": "2",
    "tcp_user_timeout": "5000",  # milliseconds
    "connect_timeout": str(CONNECT_TIMEOUT_SECONDS),
}

# The same for the server's end, which libpq's options do not reach: by its own default the session
# of a client that vanished holds its locks for two hours.
_SERVER_TCP_SETTINGS = {
    "tcp_keepalives_idle": "3",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "5000",  # milliseconds
}

_open: weakref.WeakSet["Database"] = weakref.WeakSet()


def driver_url(url: str) -> URL:
    """`url` for psycopg 3, whatever common scheme it came with. Raises `InvalidInput`."""
    try:
        parsed = make_url(url)
    except Exception:  # noqa: BLE001 - a parser: whatever it stumbles over is the URL's fault
        raise InvalidInput(
            "the database URL cannot be read; it has the form "
            "postgresql://user:password@host:port/name"
        ) from None
    return parsed.set(drivername="postgresql+psycopg")


def libpq_url(url: str) -> str:
    """`url` as psycopg itself takes it."""
    return driver_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


class Database:
    """A pool of connections for the process that made it.

    `application_name` is asked for each new session. `idle_limit_seconds` makes the server end a
    session that sits in an open transaction for longer: a frozen worker must not hold its row
    locks. `pre_ping` costs a round trip before each use, and notices a connection that was lost
    meanwhile; without it the first statement after an outage fails. `tell` is called with each run
    of which something new has been committed (`news`); it must not wait for anything. A forked
    child gets a fresh pool; its copies of the parent's sockets are closed without a word to the
    server, since those sessions are the parent's.
    """

    def __init__(
        self,
        url: str,
        *,
        application_name: Callable[[], str] = lambda: "celeriac",
        connections: int = 4,
        idle_limit_seconds: float | None = None,
        lock_timeout_milliseconds: int = 0,  # 0: wait for a row lock as long as it takes
        connect_timeout_seconds: int = CONNECT_TIMEOUT_SECONDS,
        pre_ping: bool = False,
        tell: Callable[[RunId], None] | None = None,
    ) -> None:
        self.url = url
        self.is_pooled = False  # behind a pooler: known after the first connection
        self._application_name = application_name
        self._tell = tell
        self._idle_limit_seconds = idle_limit_seconds
        self._lock_timeout_milliseconds = lock_timeout_milliseconds
        self._sockets: weakref.WeakSet[psycopg.Connection[Any]] = weakref.WeakSet()
        self._engine = create_engine(
            driver_url(url),
            pool_size=connections,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_SECONDS,
            pool_pre_ping=pre_ping,
            # Autocommit, which `begin` switches off in the driver: to let SQLAlchemy switch a
            # connection back and forth costs more than most statements.
            isolation_level="AUTOCOMMIT",
            pool_reset_on_return=None,  # a connection comes back outside any transaction
            connect_args={**TCP_OPTIONS, "connect_timeout": connect_timeout_seconds},
            hide_parameters=True,  # an error's text must not carry a run's data into a log
            json_serializer=codec.dumps,
            json_deserializer=codec.loads,
        )
        event.listen(self._engine, "connect", self._set_up)
        event.listen(self._engine, "checkin", _clean)
        _open.add(self)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A connection on which each statement is a transaction of its own."""
        with (
            _translated(self.url),
            self._engine.connect() as connection,
            news.collected(connection, self._tell),
        ):
            yield connection

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction: committed at the end of the block, rolled back by an exception.

        If the block itself commits or rolls back, what follows is a new transaction, never
        autocommit: half of a tool's writes must not slip out one by one.
        """
        with (
            _translated(self.url),
            self._engine.connect() as connection,
            news.collected(connection, self._tell),
        ):
            driver = driver_of(connection)
            driver.autocommit = False
            try:
                yield connection
                if connection.closed:
                    raise ResourceClosedError("the block has closed its connection")
                driver.commit()
            except BaseException:
                # Closed by the block, it is back in the pool, cleaned, and perhaps in use again.
                if not connection.closed and not driver.closed:
                    driver.rollback()
                raise
            finally:
                if not connection.closed and not driver.closed:
                    driver.autocommit = True

    def drop_idle(self) -> None:
        """Close the connections that nobody uses just now; new ones are opened as needed."""
        self._engine.dispose()

    def close(self) -> None:
        self._engine.dispose()

    def _set_up(self, driver: psycopg.Connection[Any], _record: object) -> None:
        self._sockets.add(driver)
        row = driver.execute(
            "SELECT pg_backend_pid(), current_setting('server_version_num')::int,"
            " set_config('application_name', %s, false),"
            " set_config('idle_in_transaction_session_timeout', %s, false),"
            " set_config('lock_timeout', %s, false),"
            " set_config('client_connection_check_interval', '2000', false),"  # milliseconds
            " (SELECT count(set_config(key, value, false)) FROM json_each_text(%s::json))",
            (
                self._application_name(),
                str(int((self._idle_limit_seconds or 0) * 1000)),
                str(self._lock_timeout_milliseconds),
                codec.dumps(_SERVER_TCP_SETTINGS),
            ),
        ).fetchone()
        assert row is not None
        backend_pid, version = row[0], row[1]
        if version < OLDEST_SERVER:
            raise DatabaseUnavailable(
                f"the server at {redact_url(self.url)} is PostgreSQL {version // 10000}; "
                "Celeriac needs 15 or later"
            )
        if backend_pid != driver.info.backend_pid:
            self.is_pooled = True
            driver.prepare_threshold = None  # the next statement may land in another session

    def _abandon(self) -> None:
        for driver in list(self._sockets):
            with suppress(psycopg.Error, OSError):
                os.close(driver.fileno())
        self._engine.dispose(close=False)


def fetch_row(
    connection: Connection, statement: str, parameters: Mapping[str, Any]
) -> tuple[Any, ...] | None:
    """The first row of what the statement returns, if any, by the driver alone.

    For the statements of every step: SQLAlchemy's bookkeeping for a textual statement and its
    columns took a fifth of the CPU time of a step. Errors are psycopg's own.
    """
    return driver_of(connection).execute(statement, parameters).fetchone()


def fetch_rows(
    connection: Connection, statement: str, parameters: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """All rows of what the statement returns, likewise."""
    return driver_of(connection).execute(statement, parameters).fetchall()


def driver_of(connection: Connection) -> psycopg.Connection[Any]:
    """The driver's own connection."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver


def _clean(driver: psycopg.Connection[Any] | None, record: ConnectionPoolEntry) -> None:
    """Whoever takes the connection next must find neither a dead one nor an open transaction."""
    if driver is None:
        return
    if driver.closed:
        record.invalidate()
    elif not driver.autocommit:
        driver.rollback()
        driver.autocommit = True


def is_connection_loss(error: BaseException) -> bool:
    """Whether the server went away under the statement, so that its outcome may be unknown."""
    if isinstance(error, DatabaseUnavailable):
        return True
    state = sqlstate(error)
    if state == IDLE_IN_TRANSACTION:
        return False
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    # 57P01..57P03: shut down by an administrator, crashed, or not yet accepting connections.
    return isinstance(_driver_error(error), psycopg.OperationalError) and (
        state is None or state in {"57P01", "57P02", "57P03"} or state.startswith("08")
    )


def is_lost_race(error: BaseException) -> bool:
    """Whether the server rolled the transaction back because of others at the same time
    (serialization failure, deadlock): the same again may well do."""
    return sqlstate(error) in {"40001", "40P01"}


def ends_transaction(error: BaseException, driver: psycopg.Connection[Any]) -> bool:
    """Whether the whole transaction on `driver` is lost with this error, so that nothing in it can
    go on.

    Whether a connection was lost, the connection says: a block may talk to other servers, and their
    errors look the same.
    """
    state = sqlstate(error)
    if is_connection_loss(error) or state == IDLE_IN_TRANSACTION:
        return driver.closed
    # 40: rolled back (lost race, deadlock). 25: no transaction, or a failed one. CE: ours.
    # 57014, 55P03: out of time.
    return state is not None and state.startswith(("40", "25", "CE", "57014", "55P03"))


def sqlstate(error: BaseException) -> str | None:
    """The five-character code PostgreSQL gave, for errors that came from it."""
    return getattr(_driver_error(error), "sqlstate", None)


@contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseUnavailable(
            "all of this process's database connections were busy for "
            f"{POOL_TIMEOUT_SECONDS} s: raise CELERIAC_CONNECTIONS, or let transactional tools "
            "hold theirs for less long"
        ) from error
    except (DBAPIError, psycopg.Error) as error:
        if not is_connection_loss(error):
            raise
        cause = _driver_error(error)
        raise DatabaseUnavailable(
            f"PostgreSQL at {redact_url(url)} cannot be used "
            f"({redact(str(cause)).strip() or type(cause).__name__}): check that it runs "
            "and that its URL is right"
        ) from error


def _driver_error(error: BaseException) -> BaseException:
    """The driver's own error: statements raise it wrapped by SQLAlchemy, BEGIN and COMMIT as it
    is.
    """
    return getattr(error, "orig", None) or error


def _abandon_all() -> None:
    for database in list(_open):
        database._abandon()


os.register_at_fork(after_in_child=_abandon_all)
