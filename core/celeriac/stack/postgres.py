"""The stack's PostgreSQL: made once, then run on its data for as long as the folder exists."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import psycopg

from celeriac.errors import StackFailed
from celeriac.stack import remains
from celeriac.stack.account import reachable
from celeriac.stack.folder import Folder
from celeriac.stack.launching import launched
from celeriac.stack.ports import LOOPBACK
from celeriac.stack.programs import Programs, find_postgres
from celeriac.stack.remains import are_gone
from celeriac.stack.service import Program

NAME = "postgres"
DATABASE = "celeriac"
LOGIN = "celeriac_owner"
"""Not the name of our schema: what a login's own tables would go to is the schema of its name."""
INITDB_SECONDS = 120.0
CONNECT_SECONDS = 2

SETTINGS = {
    "listen_addresses": LOOPBACK,
    # No Unix socket: its path may have 107 bytes only, and what a killed server leaves of it is in
    # the next one's way.
    "unix_socket_directories": "",
    "max_connections": "200",  # a worker has up to 14
    # What was committed is kept, also when the machine loses its power.
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    # After a crash all data are synced first: file by file that took 3 s, at once 0.3 s.
    **({"recovery_init_sync_method": "syncfs"} if sys.platform == "linux" else {}),
    "logging_collector": "off",  # to its standard error, which is our log
    "log_destination": "stderr",
    "log_line_prefix": "%m [%p] ",
    "cluster_name": "celeriac",
}


class Postgres:
    """A PostgreSQL server on the data of one folder, which is held.

    Listens on 127.0.0.1 alone and asks for a password. The login is a superuser of this server.
    """

    def __init__(self, folder: Folder) -> None:
        """Make the data if there are none. Raises `StackFailed`."""
        self._folder = folder
        self._programs = reachable(find_postgres(), folder.account)
        self._password = folder.password(NAME)  # stored before it is needed: see `_make`
        self._data = folder.servers / f"{NAME}-{self._programs.major}"
        self._refuse_other_version()
        self._port = folder.port(f"{NAME} port")
        if not self._data.is_dir():
            self._make()

    @property
    def url(self) -> str:
        return self._url(DATABASE)

    @property
    def program(self) -> Program:
        options = [f"--{name}={value}" for name, value in SETTINGS.items()]
        return Program(
            name=NAME,
            command=[
                str(self._programs.server_path),
                "-D",
                str(self._data),
                f"--port={self._port}",
                *options,
            ],
            environment=_environment(),
            folder=self._data,
            log=self._folder.log(NAME),
            address=f"{LOOPBACK}:{self._port}",
            account=self._folder.account,
            is_ready=self._is_ready,
            may_start=self._may_start,
            stop_signal=signal.SIGINT,  # the fast shutdown: sessions are ended, all is written
            stop_seconds=30.0,
            orphan_signal=signal.SIGQUIT,  # the immediate one: its children end as well
        )

    def make_database(self) -> None:
        """Create the database on a server that is ready, if it has none; with pgvector, where the
        server brings it along, which computes how near memories are."""
        with psycopg.connect(
            self._url("postgres"), autocommit=True, connect_timeout=CONNECT_SECONDS
        ) as connection:
            found = connection.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,))
            if found.fetchone() is None:
                connection.execute(f'CREATE DATABASE "{DATABASE}"')
        with psycopg.connect(
            self.url, autocommit=True, connect_timeout=CONNECT_SECONDS
        ) as connection:
            found = connection.execute(
                "SELECT FROM pg_available_extensions"
                " WHERE name = 'vector' AND installed_version IS NULL"
            )
            if found.fetchone() is not None:
                connection.execute("CREATE EXTENSION vector")

    def _make(self) -> None:
        """Make the data under a temporary name: what was interrupted must not pass for a server.

        The password is stored before: if it were only told after a first start, a start that fails
        half-way would lock everybody out.
        """
        new = self._folder.servers / f"{self._data.name}.new"
        while not are_gone(new):  # a killed one's, which still writes
            time.sleep(0.02)
        shutil.rmtree(new, ignore_errors=True)
        password_file = self._folder.write_private(f"{NAME}.password", self._password)
        try:
            self._folder.make_private(new.name)
            _initdb(self._programs, self._folder, new, password_file)
            new.rename(self._data)
            _sync(self._data.parent)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        finally:
            password_file.unlink(missing_ok=True)

    def _refuse_other_version(self) -> None:
        others = sorted(
            found.name.removeprefix(f"{NAME}-")
            for found in self._folder.servers.glob(f"{NAME}-*/")
            if found.name != self._data.name and not found.name.endswith(".new")
        )
        if others and not self._data.is_dir():
            raise StackFailed(
                f"{self._folder.path} holds the data of PostgreSQL {others[-1]}, and only version "
                f"{self._programs.major} was found, which cannot read them: install version "
                f"{others[-1]}, or copy the data with its pg_dump and start in another folder"
            )

    def _may_start(self) -> bool:
        """After a SIGKILL: wait for the last server's remains, then remove what it left.

        PostgreSQL looks at postmaster.pid by itself, and refuses to start if that process exists:
        also one that only nobody has waited for, or another program that has its number by now.
        Where we cannot look ourselves, that is the only guard there is.
        """
        if not are_gone(self._data):
            return False
        if remains.CAN_LOOK:
            (self._data / "postmaster.pid").unlink(missing_ok=True)
        return True

    def _is_ready(self, pid: int) -> bool:
        """The server says so itself, and answers; it is ours, and nobody else's on that port."""
        try:
            told = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        if len(told) < 8 or told[0] != str(pid) or told[7].strip() != "ready":
            return False
        try:
            with psycopg.connect(
                self._url("postgres"), autocommit=True, connect_timeout=CONNECT_SECONDS
            ) as connection:
                connection.execute("SELECT 1")
        except psycopg.Error:
            return False
        return True

    def _url(self, database: str) -> str:
        password = quote(self._password, safe="")
        return f"postgresql://{LOGIN}:{password}@{LOOPBACK}:{self._port}/{database}"


def _initdb(programs: Programs, folder: Folder, data: Path, password_file: Path) -> None:
    command = [
        str(programs.path("initdb")),
        "-D",
        str(data),
        f"--username={LOGIN}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        *_locale(programs.major),
        *_sync_method(programs.major),
        "--no-instructions",
    ]
    try:
        made = subprocess.run(  # noqa: S603 - PostgreSQL's own program
            launched(command, account=folder.account),
            env=_environment(),
            cwd=data,
            start_new_session=True,  # Ctrl-C is not for it
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=INITDB_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StackFailed(
            f"initdb has not made a database in {folder.path} within {INITDB_SECONDS:g} s"
        ) from error
    if made.returncode != 0:
        said = [line for line in made.stdout.splitlines() if re.search("error|FATAL|PANIC", line)]
        raise StackFailed(
            f"initdb could not make a database in {folder.path}: "
            f"{'; '.join(said[:2]) or made.stdout.strip() or 'it said nothing'}"
        )


def _locale(major: int) -> Sequence[str]:
    """Unicode without ICU, and without the system's locales where PostgreSQL can do it itself."""
    if major >= 17:
        return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return ["--locale=C.UTF-8" if sys.platform == "linux" else "--locale=C"]


def _sync_method(major: int) -> Sequence[str]:
    """All of the file system at once: 3 s sooner here than file by file."""
    return ["--sync-method=syncfs"] if major >= 17 and sys.platform == "linux" else []


def _environment() -> dict[str, str]:
    """Nothing of ours: PGDATA, PGPORT or PGOPTIONS would speak to the server."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
