"""The servers that tests run on, and a database, a broker and a queue for each test alone.

Where they are: `CELERIAC_TEST_DATABASE_URL` (a login that may create databases) and
`CELERIAC_TEST_BROKER_URL` (redis:// or amqp://); else, with `CELERIAC_TEST_SERVERS=system`, at the
usual local ports; else the run starts its own (`tests.embedded`). RabbitMQ is never embedded.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, LiteralString, NoReturn, cast
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from kombu import Connection as BrokerConnection
from kombu import Queue
from psycopg import sql

from celeriac.errors import StackFailed
from celeriac.ids import DEFAULT_QUEUE
from celeriac_storage.database import Database, driver_url, libpq_url
from celeriac_storage.schema import migrate
from tests.embedded import MEMORY, Urls, embedded_urls
from tests.histories import assert_documented
from tests.waiting import eventually

BrokerKind = Literal["redis", "amqp"]

_SYSTEM_DATABASE = "postgresql://postgres@127.0.0.1:5432/postgres"
_SYSTEM_REDIS = "redis://127.0.0.1:6379"
_SYSTEM_RABBITMQ = "amqp://guest:guest@127.0.0.1:5672//"
# Number 0 is where a developer's own data lies.
_REDIS_NUMBERS = range(1, 16)
_SESSION = f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{os.getpid()}"
_serial = count()


def uses_system_servers() -> bool:
    """Whether the tests run on what the system has installed, instead of the embedded servers."""
    chosen = os.environ.get("CELERIAC_TEST_SERVERS") or "embedded"
    if chosen not in ("embedded", "system"):
        raise pytest.UsageError(
            f"CELERIAC_TEST_SERVERS is {chosen}: it must be embedded (the default) or system"
        )
    return chosen == "system"


def database_server_url() -> str:
    if url := os.environ.get("CELERIAC_TEST_DATABASE_URL"):
        return url
    return _SYSTEM_DATABASE if uses_system_servers() else _embedded("PostgreSQL").database


def broker_server_url(kind: BrokerKind) -> str:
    if kind == default_broker_kind() and (url := os.environ.get("CELERIAC_TEST_BROKER_URL")):
        return url
    if kind == "amqp":
        return _SYSTEM_RABBITMQ
    return _SYSTEM_REDIS if uses_system_servers() else _embedded("Redis").broker


def _embedded(server: str) -> Urls:
    try:
        return embedded_urls()
    except StackFailed as error:
        missing(f"the embedded {server}", error)


def missing(server: str, error: Exception) -> NoReturn:
    """A server is not there: on a laptop the test is skipped, in CI it fails."""
    message = f"{server} does not answer ({str(error).strip()})"
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


# PostgreSQL -------------------------------------------------------------------------------------


class DatabaseServer:
    """Creates and drops databases, for one pytest process.

    Its session carries a name that the databases' names begin with. So what a killed test run left
    behind is known by there being no session of that name, and is dropped by the next one.
    """

    _PREFIX = "celeriac_test_"

    def __init__(self) -> None:
        self._url = database_server_url()
        self._prefix = f"{self._PREFIX}{_SESSION}_"
        try:
            self._session = psycopg.connect(
                libpq_url(self._url),
                autocommit=True,
                connect_timeout=5,
                application_name=self._prefix,
            )
        except psycopg.OperationalError as error:
            missing("PostgreSQL", error)
        self._drop_orphans()
        self._template: str | None = None
        self._strategy = self._fastest_strategy()

    def close(self) -> None:
        if self._template is not None:
            self._drop(self._template)
        self._session.close()

    @contextmanager
    def database(self, *, migrated: bool) -> Iterator[str]:
        """The URL of a fresh database, dropped afterwards whoever is still connected.

        What a test has left there as the history of its runs must be as the models of events say.
        """
        with self._created(self._migrated_template() if migrated else "template0") as url:
            yield url
            if migrated:
                assert_documented(url)

    @contextmanager
    def copy(self, url: str) -> Iterator[str]:
        """The URL of a copy of the database at `url`; nobody may be connected to that meanwhile."""
        template = driver_url(url).database
        assert template is not None
        with self._created(template) as copied:
            yield copied

    @contextmanager
    def _created(self, template: str) -> Iterator[str]:
        name = self._create(template)
        try:
            yield self._url_of(name)
        finally:
            self._drop(name)

    def _migrated_template(self) -> str:
        if self._template is None:
            name = self._create(template="template0")
            database = Database(self._url_of(name), connections=1)
            migrate(database)
            database.close()
            self._template = name
        return self._template

    def _create(self, template: str) -> str:
        name = f"{self._prefix}{next(_serial)}"
        self._session.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}").format(
                sql.Identifier(name), sql.Identifier(template), sql.SQL(self._strategy)
            )
        )
        return name

    def _fastest_strategy(self) -> LiteralString:
        """How to copy a database: in memory as files, which on a disk waits for two checkpoints."""
        in_memory = self._session.execute(
            "SELECT FROM pg_settings WHERE name = 'data_directory' AND starts_with(setting, %s)",
            (str(MEMORY),),
        ).fetchone()
        return "WAL_LOG" if in_memory is None else "FILE_COPY"

    def _drop(self, name: str) -> None:
        self._session.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def _drop_orphans(self) -> None:
        # Parallel workers start together: one at a time, or they would drop the same database.
        self._session.execute("SELECT pg_advisory_lock(hashtext(%s))", (self._PREFIX,))
        orphans = self._session.execute(
            "SELECT datname FROM pg_database WHERE starts_with(datname, %s) AND NOT EXISTS ("
            " SELECT FROM pg_stat_activity WHERE starts_with(application_name, %s)"
            " AND starts_with(pg_database.datname, application_name))",
            (self._PREFIX, self._PREFIX),
        ).fetchall()
        for (name,) in orphans:
            self._drop(name)
        self._session.execute("SELECT pg_advisory_unlock(hashtext(%s))", (self._PREFIX,))

    def _url_of(self, name: str) -> str:
        url = driver_url(self._url).set(drivername="postgresql", database=name)
        return url.render_as_string(hide_password=False)


# Redis and RabbitMQ -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TestBroker:
    """A broker that nobody else uses: on Redis a database, on RabbitMQ a queue of its own."""

    __test__ = False  # not a test, whatever its name begins with

    kind: BrokerKind
    url: str
    queue: str


def default_broker_kind() -> BrokerKind:
    """The kind of the broker in `CELERIAC_TEST_BROKER_URL`, else Redis."""
    url = os.environ.get("CELERIAC_TEST_BROKER_URL") or "redis:"
    return "redis" if url.startswith("redis") else "amqp"


@contextmanager
def lease_broker(kind: BrokerKind) -> Iterator[TestBroker]:
    """An empty broker, emptied again afterwards."""
    server = broker_server_url(kind)
    with _redis(server) if kind == "redis" else _amqp(server) as broker:
        yield broker


@contextmanager
def _redis(server: str) -> Iterator[TestBroker]:
    with _number() as number:
        url = urlsplit(server)._replace(path=f"/{number}").geturl()
        client = redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5)
        try:
            client.flushdb()
        except redis.ConnectionError as error:
            missing("Redis", error)
        yield TestBroker("redis", url, DEFAULT_QUEUE)
        client.flushdb()
        client.close()


@contextmanager
def _number() -> Iterator[int]:
    """Lease a Redis database from the other test processes of this machine.

    A file lock, since it ends with the process that holds it, however that ends.
    """
    folder = Path(tempfile.gettempdir()) / f"celeriac-test-redis-{os.getuid()}"
    folder.mkdir(exist_ok=True)

    def free() -> tuple[int, Any] | None:
        for number in _REDIS_NUMBERS:
            file = (folder / str(number)).open("w")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
            else:
                return number, file
        return None

    number, file = cast(tuple[int, Any], eventually(free, what="a free Redis database"))
    with file:
        yield number


@contextmanager
def _amqp(server: str) -> Iterator[TestBroker]:
    queue = f"celeriac-test-{_SESSION}-{next(_serial)}"
    try:
        with BrokerConnection(server, connect_timeout=5) as connection:
            connection.connect()
    except OSError as error:
        missing("RabbitMQ, which is never embedded,", error)
    yield TestBroker("amqp", server, queue)
    with BrokerConnection(server, connect_timeout=5) as connection:
        # Deleting a queue that was never declared is no error on RabbitMQ.
        Queue(queue, channel=connection.default_channel).delete()
