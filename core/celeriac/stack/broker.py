"""The stack's broker: Valkey or Redis, on the data of one folder."""

import shutil
import socket
from urllib.parse import quote

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
        """It answers who knows the password, and it is ours, and nobody else's on that port.

        Asked in Redis's own protocol: its client takes longer to import than the broker to start.
        """
        asked = f"AUTH {self._password}\r\nINFO server\r\nPING\r\nQUIT\r\n"
        try:
            with socket.create_connection((LOOPBACK, self._port), ANSWER_SECONDS) as connection:
                connection.sendall(asked.encode())
                told = b"".join(iter(lambda: connection.recv(65536), b"")).splitlines()
        except OSError:
            return False
        return f"process_id:{pid}".encode() in told and b"+PONG" in told
