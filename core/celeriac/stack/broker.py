"""The stack's broker: Valkey or Redis, on the data of one folder."""

import shutil
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celeriac.stack.account import reachable
from celeriac.stack.folder import Folder
from celeriac.stack.ports import LOOPBACK
from celeriac.stack.programs import find_broker
from celeriac.stack.remains import are_gone
from celeriac.stack.service import Program

NAME = "broker"
ANSWER_SECONDS = 1.0


class Broker:
    """A Redis-compatible server on the data of one folder, which is held.

    Listens on 127.0.0.1 alone and asks for a password. What it has acknowledged outlives its
    process; a power failure may cost the last second, which the scheduler publishes again.
    """

    def __init__(self, folder: Folder) -> None:
        """Raises `StackFailed`."""
        self._folder = folder
        self._programs = reachable(find_broker(), folder.account)
        self._password = folder.password(NAME)
        self._port = folder.port(f"{NAME} port")
        self._data = folder.make_private(NAME)
        # A file, because the command line is everybody's to read.
        self._config = folder.write_private(f"{NAME}.conf", self._settings())

    @property
    def url(self) -> str:
        return f"redis://:{quote(self._password, safe='')}@{LOOPBACK}:{self._port}/0"

    @property
    def program(self) -> Program:
        return Program(
            name=NAME,
            command=[str(self._programs.server_path), str(self._config)],
            environment={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            folder=self._data,
            log=self._folder.log(NAME),
            address=f"{LOOPBACK}:{self._port}",
            account=self._folder.account,
            is_ready=self._is_ready,
            may_start=lambda: are_gone(self._data),
        )

    def forget(self) -> None:
        """Remove all that it holds, while it does not run."""
        for found in self._data.iterdir():
            if found.is_dir():
                shutil.rmtree(found)
            else:
                found.unlink()

    def _settings(self) -> str:
        return "\n".join(
            [
                f"bind {LOOPBACK}",
                f"port {self._port}",
                f"requirepass {self._password}",
                "daemonize no",
                # Full memory must refuse a message, not throw another one away.
                "maxmemory-policy noeviction",
                # Each write is in the kernel's hands before it is acknowledged.
                "appendonly yes",
                "appendfsync everysec",
                # In the common format: Valkey's own is not read by Redis 7 and 8.
                "aof-use-rdb-preamble no",
                'save ""',
                "",
            ]
        )

    def _is_ready(self, pid: int) -> bool:
        """It answers who knows the password, and it is ours, and nobody else's on that port."""
        try:
            with redis.Redis.from_url(
                self.url,
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=ANSWER_SECONDS,
                # By default the client tries again by itself, and sleeps for a second in between.
                retry=Retry(NoBackoff(), 0),
            ) as client:
                return int(client.info("server")["process_id"]) == pid and bool(client.ping())
        except (redis.RedisError, OSError):
            return False
