"""DATA, the folder of one stack: who holds it, what it remembers, where its servers' data lie.

DATA/lock            locked as long as a stack runs; holds the pid of its supervisor
DATA/stack.json      where to reach it, while it runs
DATA/api-token       a token of the API, for this user alone; made once
DATA/logs/           one log for each service
DATA/servers/        the servers' data, and their ports and passwords. As root it is a link to
                     /var/lib/celeriac if the servers' account could not reach it here
"""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from celeriac.errors import StackFailed, StackRunning
from celeriac.stack import ports
from celeriac.stack.account import SYSTEM_FOLDER, Account, account_for, make_system_folder
from celeriac.stack.description import API_TOKEN, DESCRIPTION, LOCK, is_running

HOLD_SECONDS = 1.0
"""How long a lock may be in the way that is only a command looking whether the stack runs."""

PRIVATE = 0o700
PASSABLE = 0o711  # for root's, through which the servers' account must pass


class Folder:
    """DATA, held by this process alone from `hold` to `release`.

    Every method may raise `StackFailed` with what the system said about the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.servers = self.path / "servers"
        self.account: Account | None = None
        self._locks: list[int] = []
        self._remembered: dict[str, Any] = {}

    def log(self, service: str) -> Path:
        return self.path / "logs" / f"{service}.log"

    def hold(self) -> None:
        """Make the folder if need be, and lock it. Raises `StackRunning` if somebody else has it.

        The locks end with this process, however that ends. A folder that we hold stays so.
        """
        if self._locks:
            return
        try:
            _make(self.path, PASSABLE if os.geteuid() == 0 else PRIVATE)
            lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            self._locks.append(lock)
            _lock(lock, self.path)
            os.truncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            self.remove_description()
            _make(self.path / "logs", PRIVATE)
            self._place_servers()
            self._remembered = _read(self.servers / "remembered.json")
        except OSError as error:
            self.release()
            raise _cannot_use(self.path, error) from error
        except StackFailed:
            self.release()
            raise

    def release(self) -> None:
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()

    def password(self, name: str) -> str:
        """The password that belongs to `name`; made, and stored, the first time."""
        if name not in self._remembered:
            self._remember(name, secrets.token_urlsafe(24))
        return str(self._remembered[name])

    def port(self, name: str) -> int:
        """The port that `name` had the last time if it is still free, else a free one."""
        port = self._remembered.get(name)
        if not isinstance(port, int) or not ports.is_free(port):
            taken = [value for value in self._remembered.values() if isinstance(value, int)]
            port = ports.find_free(besides=taken)
            self._remember(name, port)
        return port

    def describe(self, description: object) -> None:
        """Write `stack.json`, all of it or nothing."""
        self._write(self.path / DESCRIPTION, description)

    def read_token(self) -> str | None:
        """The token of the API, if one was ever written."""
        try:
            return (self.path / API_TOKEN).read_text().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StackFailed(f"cannot read {self.path / API_TOKEN}: {error}") from error

    def write_token(self, token: str) -> None:
        """Keep it for this user alone."""
        self._write_text(self.path / API_TOKEN, f"{token}\n")

    def remove_description(self) -> None:
        (self.path / DESCRIPTION).unlink(missing_ok=True)

    def make_private(self, name: str) -> Path:
        """A folder below `servers` that is the servers' account's alone, made if need be."""
        folder = self.servers / name
        try:
            if not folder.is_dir():
                folder.mkdir(PRIVATE)
                self.give(folder, PRIVATE)
        except OSError as error:
            raise _cannot_use(self.path, error) from error
        return folder

    def write_private(self, name: str, text: str) -> Path:
        """A file below `servers` that the servers' account can read, and nobody else."""
        file = self.servers / name
        try:
            file.unlink(missing_ok=True)
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as out:
                out.write(text)
            self.give(file, 0o600)
        except OSError as error:
            raise _cannot_use(self.path, error) from error
        return file

    def give(self, path: Path, mode: int) -> None:
        """Give a file or folder below `servers` to whoever runs them."""
        if self.account is not None:
            self.account.own(path, mode)

    def _place_servers(self) -> None:
        if not self.servers.exists():
            self.servers.unlink(missing_ok=True)  # a link to what was deleted
            self.account = account_for(self.servers)
            if self.account is None or self.account.can_enter(self.path):
                _make(self.servers, PRIVATE if self.account is None else PASSABLE)
            else:
                self.servers.symlink_to(_system_folder(self.path), target_is_directory=True)
        # By their own path: the link may lie where the account cannot follow it.
        self.servers = self.servers.resolve()
        self.account = account_for(self.servers)
        if self.account is not None and not self.account.can_enter(self.servers):
            raise StackFailed(
                f"account {self.account.name}, which runs the servers for root, cannot enter "
                f"{self.servers}: open the folders above it to others (chmod o+x), or "
                "name another folder with --data or CELERIAC_DATA"
            )
        # A copy of DATA has the same link: the data themselves must have one user only.
        data = os.open(self.servers, os.O_RDONLY | os.O_DIRECTORY)
        self._locks.append(data)
        _lock(data, self.servers)

    def _remember(self, name: str, value: object) -> None:
        self._remembered[name] = value
        self._write(self.servers / "remembered.json", self._remembered)

    def _write(self, file: Path, value: object) -> None:
        self._write_text(file, f"{json.dumps(value, indent=2)}\n")

    def _write_text(self, file: Path, text: str) -> None:
        written = file.with_name(f"{file.name}.new")
        try:
            with suppress(FileNotFoundError):
                written.unlink()
            descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as out:
                out.write(text)
                out.flush()
                os.fsync(descriptor)
            written.replace(file)
        except OSError as error:
            raise _cannot_use(self.path, error) from error


def remove(data: Path) -> None:
    """Remove a folder and the servers' data, wherever they lie. Raises `StackRunning`, `OSError`.

    A folder that is not there is no error.
    """
    if is_running(data):
        raise StackRunning(f"a stack runs in {data}: stop it first")
    servers = data / "servers"
    if servers.is_symlink():
        shutil.rmtree(servers.resolve(), ignore_errors=True)
    while data.exists():
        # A server that has just ended may still be removing files of its own.
        with suppress(FileNotFoundError):
            shutil.rmtree(data)


def _make(folder: Path, mode: int) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True)
        folder.chmod(mode)  # whatever the umask says


def _system_folder(data: Path) -> Path:
    """Where the servers' data lie that cannot lie in DATA; found again by DATA's path."""
    name = hashlib.sha256(os.fsencode(data.resolve())).hexdigest()[:16]
    folder = SYSTEM_FOLDER / name
    make_system_folder(folder)
    return folder


def _lock(descriptor: int, path: Path) -> None:
    give_up_at = time.monotonic() + HOLD_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                holder = path / LOCK
                by = f" (pid {holder.read_text().strip()})" if holder.is_file() else ""
                raise StackRunning(
                    f"a stack runs in {path} already{by}: use that one, stop it first, or name "
                    "another folder with --data or CELERIAC_DATA"
                ) from None
            time.sleep(0.02)
        else:
            return


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise StackFailed(
            f"{file} does not hold what Celeriac wrote there: ports and passwords, as one JSON "
            "object. Restore it; the data beside it cannot be opened without its passwords"
        )
    return found


def _cannot_use(path: Path, error: OSError) -> StackFailed:
    return StackFailed(
        f"cannot use {path} for the stack's data: {error.strerror or error}"
        f"{f' ({error.filename})' if error.filename else ''}. Make room or give access, or name "
        "another folder with --data or CELERIAC_DATA"
    )
