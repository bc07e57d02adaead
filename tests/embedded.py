"""The servers of a test run that names none: the embedded stack's, shared by all its processes.

They are started when the first test asks for them, so `pytest tests/unit` starts none, by the
process that lives longest: pytest itself, or with xdist its controller. Its workers ask it where
they are, through `CELERIAC_TEST_EMBEDDED`. However that process ends, they end with it.
"""

import fcntl
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

from celeriac.errors import StackFailed
from celeriac.stack.description import is_running
from celeriac.stack.folder import remove
from celeriac.stack.ports import LOOPBACK
from celeriac.stack.servers import Servers

VARIABLE = "CELERIAC_TEST_EMBEDDED"

MEMORY = Path("/dev/shm")  # noqa: S108 - in a folder of this user's
MEMORY_BYTES = 2 << 30
"""Many times what a run's servers take."""


def fast_folder() -> Path:
    """In memory, where a machine has enough of that; else the folder for temporary files.

    A test's database is four hundred files, and its making and its end are checkpoints, which sync
    them. That was most of what tests on a disk waited for, and half of what they computed.
    """
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        return MEMORY
    return Path(tempfile.gettempdir())


FOLDER = fast_folder() / f"celeriac-test-servers-{os.getuid()}"
"""Not below the checkout: root's servers run as an account that may not be able to enter it."""

WAITING_ASKERS = 64
"""All of xdist's workers ask at once, while the servers start."""


@dataclass(frozen=True, slots=True)
class Urls:
    """Both contain a password. The database's login may create databases."""

    database: str
    broker: str


@cache
def embedded_urls() -> Urls:
    """Where this run's servers are; starts them if nobody has asked before.

    Raises `StackFailed`.
    """
    port, key = os.environ[VARIABLE].split(":")
    with Client((LOOPBACK, int(port)), authkey=key.encode()) as owner:
        answer = owner.recv()
    if isinstance(answer, StackFailed):
        raise answer
    assert isinstance(answer, Urls)
    return answer


class EmbeddedServers:
    """Starts them when somebody asks, and tells everybody; stops them at `close`."""

    def __init__(self) -> None:
        key = secrets.token_hex(16)
        self._listener = Listener((LOOPBACK, 0), backlog=WAITING_ASKERS, authkey=key.encode())
        self._is_over = threading.Event()
        self._starting = threading.Lock()
        self._servers: Servers | None = None
        _, port = self._listener.address
        os.environ[VARIABLE] = f"{port}:{key}"
        threading.Thread(target=self._answer, name="embedded-servers", daemon=True).start()

    def close(self) -> None:
        self._is_over.set()
        with self._starting:
            if self._servers is not None:
                self._servers.stop()
                with _looking_for_folders():
                    # Another run may have taken it since.
                    if not is_running(self._servers.folder.path):
                        remove(self._servers.folder.path)
        self._listener.close()

    def _answer(self) -> None:
        while not self._is_over.is_set():
            # Whoever asks may be killed meanwhile, as may the run: no reason to end either.
            with suppress(OSError, EOFError, AuthenticationError), self._listener.accept() as asker:
                asker.send(self._urls())

    def _urls(self) -> Urls | StackFailed:
        with self._starting:
            if self._servers is None:
                try:
                    self._servers = _start(self._is_over)
                except StackFailed as error:
                    return error
            return Urls(self._servers.database_url, self._servers.broker_url)


def _start(give_up: threading.Event) -> Servers:
    """Fresh ones, in the first folder that no other test run uses.

    What is in there was left by a run that was killed.
    """
    FOLDER.mkdir(exist_ok=True)
    FOLDER.chmod(0o711)
    with _looking_for_folders():
        data = next(FOLDER / str(n) for n in count() if not is_running(FOLDER / str(n)))
        remove(data)
        servers = Servers(data)
        servers.start(give_up)
        return servers


@contextmanager
def _looking_for_folders() -> Iterator[None]:
    """One test run at a time, from a look at whether a folder is used until that is acted upon."""
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
