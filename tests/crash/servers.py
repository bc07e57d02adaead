"""Servers of a test's own, to be killed and started again: a Redis and a PostgreSQL cluster."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from tests.waiting import eventually

REDIS_SERVER = Path("/usr/bin/redis-server")
POSTGRES_PROGRAMS = Path("/usr/lib/postgresql/15/bin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """One server process; its snapshot is `dump` and is written only by `save`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.client = redis.Redis.from_url(self.url)
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [REDIS_SERVER, "--port", str(self._port), "--bind", "127.0.0.1", "--save", "",
             "--dir", str(self._folder)],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        eventually(self.client.ping, what="Redis answering")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def save(self) -> None:
        """Make the snapshot that the next start begins with."""
        self.client.save()


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    if not REDIS_SERVER.exists():
        pytest.skip(f"there is no {REDIS_SERVER} to start a Redis of the test's own")
    server = RedisServer(folder)
    try:
        yield server
    finally:
        server.kill()
        server.client.close()


class PostgresCluster:
    """A cluster in a folder of its own; runs as user postgres if the tests run as root."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"
        self._run("initdb", "-U", "postgres", "-A", "trust", "--no-sync", "-D", folder / "data")
        self.start()

    def start(self) -> None:
        options = f"-p {self._port} -k {self._folder} -c listen_addresses=127.0.0.1"
        self._run("pg_ctl", "-D", self._folder / "data", "-l", self._folder / "log", "-o", options,
                  "-w", "start")  # fmt: skip

    def kill(self) -> None:
        """End all its processes at once, without a checkpoint: the next start recovers."""
        self._run("pg_ctl", "-D", self._folder / "data", "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str | Path) -> None:
        command: Sequence[str | Path] = [POSTGRES_PROGRAMS / program, *arguments]
        if os.getuid() == 0:  # which PostgreSQL refuses to run as
            command = ["runuser", "-u", "postgres", "--", *command]
        with (self._folder / "programs.log").open("ab") as output:
            subprocess.run(command, check=True, cwd="/", stdout=output, stderr=output, timeout=60)


@contextmanager
def postgres_cluster() -> Iterator[PostgresCluster]:
    if not POSTGRES_PROGRAMS.is_dir():
        pytest.skip(f"there is no {POSTGRES_PROGRAMS} to start a PostgreSQL of the test's own")
    # Not pytest's own folder, which user postgres may not enter.
    folder = Path(tempfile.mkdtemp(prefix="celeriac-test-postgres-"))
    if os.getuid() == 0:
        account = pwd.getpwnam("postgres")
        os.chown(folder, account.pw_uid, account.pw_gid)
    cluster = PostgresCluster(folder)
    try:
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(folder)
