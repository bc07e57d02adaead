"""Servers of a test's own, to be killed and started again: a Redis and a PostgreSQL cluster.

They run the programs of the servers that all tests share, which say themselves where those are: so
they are embedded ones or the system's, and of the same version. Each ends with the thread that
started it, however that ends.
"""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import redis

from celeriac.stack.account import Account, account_for
from celeriac.stack.launching import launched
from celeriac.stack.ports import LOOPBACK, find_free
from celeriac.stack.postgres import SETTINGS
from celeriac_storage.database import libpq_url
from tests.servers import broker_server_url, database_server_url, missing
from tests.waiting import eventually

START_SECONDS = 60.0
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}

free_port = find_free


class RedisServer:
    """One server process; its snapshot is `dump.rdb` and is written only by `save`."""

    def __init__(self, program: Path, folder: Path) -> None:
        port = find_free()
        self._command = [str(program), "--port", str(port), "--bind", LOOPBACK]
        self._command += ["--save", "", "--dir", str(folder)]
        self._log = folder / "log"
        self.url = f"redis://{LOOPBACK}:{port}/0"
        self.client = redis.Redis.from_url(self.url)
        self.start()

    def start(self) -> None:
        self._process = _start(self._command, self._log)
        eventually(self.client.ping, deadline_seconds=START_SECONDS, what="Redis answering")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def save(self) -> None:
        """Make the snapshot that the next start begins with."""
        self.client.save()


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    with redis.Redis.from_url(broker_server_url("redis")) as shared:
        try:
            told = shared.info("server")["executable"]
        except redis.ConnectionError as error:
            missing("Redis", error)
    # Redis only guesses its folder: started by its name alone, it says the one it was started in.
    program = shutil.which(told) or shutil.which(Path(told).name)
    server = RedisServer(_existing(program or told), folder)
    try:
        yield server
    finally:
        server.kill()
        server.client.close()


class PostgresCluster:
    """A cluster in a folder of its own, with the embedded stack's settings: fsync is on.

    `account` runs it, if the tests run as root, which PostgreSQL refuses.
    """

    def __init__(self, programs: Path, folder: Path, account: Account | None) -> None:
        port = find_free()
        data = folder / "data"
        self.url = f"postgresql://postgres@{LOOPBACK}:{port}/postgres"
        self._log = folder / "log"
        self._account = account
        initdb = [str(programs / "initdb"), "-D", str(data), "--username=postgres", "--auth=trust"]
        initdb += ["--encoding=UTF8", "--locale=C", "--no-sync"]
        assert _start(initdb, self._log, account).wait(START_SECONDS) == 0, self._log.read_text()
        self._command = [str(programs / "postgres"), "-D", str(data), f"--port={port}"]
        self._command += [f"--{name}={value}" for name, value in SETTINGS.items()]
        self.start()

    def start(self) -> None:
        self._process = _start(self._command, self._log, self._account, signal.SIGQUIT)
        eventually(self._answers, deadline_seconds=START_SECONDS, what="PostgreSQL answering")

    def kill(self) -> None:
        """End all its processes at once, without a checkpoint: the next start recovers."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def _answers(self) -> bool:
        psycopg.connect(self.url).close()
        return True


def postgres_programs() -> Path:
    """The folder of the programs of the server that all tests share; `psql` is one of them."""
    try:
        with psycopg.connect(libpq_url(database_server_url()), connect_timeout=5) as shared:
            ((programs,),) = shared.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
    except psycopg.Error as error:
        missing("PostgreSQL", error)
    return Path(programs)


@contextmanager
def postgres_cluster() -> Iterator[PostgresCluster]:
    initdb = _existing(f"{postgres_programs()}/initdb")
    # Not pytest's own folder, which the account may not enter.
    folder = Path(tempfile.mkdtemp(prefix="celeriac-test-postgres-"))
    account = account_for(folder)
    if account is not None:
        account.own(folder, 0o700)
    cluster = PostgresCluster(initdb.parent, folder, account)
    try:
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(folder)


def _existing(program: str) -> Path:
    path = Path(program)
    if not path.exists():
        missing("a server of the test's own", FileNotFoundError(f"{path} is not on this machine"))
    return path


def _start(
    command: Sequence[str],
    log: Path,
    account: Account | None = None,
    orphan_signal: signal.Signals = signal.SIGKILL,
) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(
            launched(command, account=account, orphan_signal=orphan_signal),
            cwd="/",
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the tests, which end it
        )
