"""What stands at one path, in a form that can be compared later, and of a whole workspace."""

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from celeriac.codec import JsonValue
from celeriac.errors import ToolError
from celeriac.workspace.confinement import (
    TEMPORARY_PREFIX,
    described,
    is_of_git,
    kind_of,
    names_in,
    open_file,
    opened_folder,
)

PERMISSIONS = 0o777  # no set-id and sticky bits: nothing here sets them
CHUNK_BYTES = 1 << 20
SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", ".venv", ".celeriac"})
"""What tools make and remake by themselves; git's own data is skipped besides."""


@dataclass(frozen=True, slots=True)
class State:
    """What stands at a path. Two states are equal if nothing that matters differs: the kind, the
    content and whether it may be executed, or where a link points to; never the time."""

    kind: Literal["absent", "file", "link", "other"]
    sha256: str = ""
    permissions: int = field(default=0, compare=False)
    target: str = ""  # of a link; of another kind, the word for it
    is_executable: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_executable", bool(self.permissions & stat.S_IXUSR))

    def to_json(self) -> JsonValue:
        match self.kind:
            case "absent":
                return None
            case "file":
                return {"sha256": self.sha256, "mode": f"{self.permissions:03o}"}
            case "link":
                return {"link": self.target}
            case _:
                return {"other": self.target}

    @classmethod
    def of_file(cls, content: bytes, permissions: int) -> "State":
        return cls("file", hashlib.sha256(content).hexdigest(), permissions & PERMISSIONS)

    @classmethod
    def from_json(cls, stored: JsonValue) -> "State":
        match stored:
            case None:
                return ABSENT
            case {"sha256": str(sha256), "mode": str(mode)}:
                return cls("file", sha256, int(mode, 8))
            case {"link": str(target)}:
                return cls("link", target=target)
            case {"other": str(word)}:
                return cls("other", target=word)
        raise ValueError(f"{stored!r} is no state of a path")


ABSENT = State("absent")
UNREADABLE = State("other", target="unreadable")


def state_at(folder: int, name: str) -> State:
    """What stands under `name` in an opened folder; reads a file to its end."""
    found = kind_of(folder, name)
    if found is None:
        return ABSENT
    if stat.S_ISLNK(found.st_mode):
        return State("link", target=os.readlink(name, dir_fd=folder))
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        return State("other", target=described(found))
    descriptor = open_file(folder, name, name)
    try:
        digest = hashlib.sha256()
        while chunk := os.read(descriptor, CHUNK_BYTES):
            digest.update(chunk)
        return State("file", digest.hexdigest(), os.fstat(descriptor).st_mode & PERMISSIONS)
    finally:
        os.close(descriptor)


def state_of(root: int, parts: tuple[str, ...]) -> State:
    """What stands at a path of the workspace; `ABSENT` also if a folder on the way is missing, or
    is a link or a file."""
    try:
        with opened_folder(root, parts[:-1]) as folder:
            try:
                return state_at(folder, parts[-1])
            except ToolError:
                return UNREADABLE
    except ToolError:
        return ABSENT


def workspace_states(root: int) -> dict[str, State | None]:
    """Each path of the workspace with its state; None stands for an empty folder.

    Skips git's own data, `SKIPPED_FOLDERS` and files that are being put in place. Names that are no
    UTF-8 hold surrogates, as `os.fsdecode` makes them.
    """
    return dict(_walk(root))


def _walk(root: int) -> Iterator[tuple[str, State | None]]:
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        with opened_folder(root, parts) as folder:
            names = [name for name in names_in(folder) if not _is_skipped(name)]
            for name in names:
                found = kind_of(folder, name)
                if found is not None and stat.S_ISDIR(found.st_mode):
                    waiting.append((*parts, name))
                elif found is not None:
                    yield "/".join((*parts, name)), state_at(folder, name)
        if parts and not names:
            yield "/".join(parts), None


def _is_skipped(name: str) -> bool:
    return is_of_git(name) or name in SKIPPED_FOLDERS or name.startswith(TEMPORARY_PREFIX)


def digest_of(states: Mapping[str, State | None]) -> str:
    """sha256 (64 hex digits) of a workspace's states, whatever order they come in.

    Of each path, sorted by its bytes, the hash takes in four fields, each ended by a NUL, which no
    path can hold: the path, the kind (`file`, `link`, `folder`, `other`), what it holds (the sha256
    of a file's content, the target of a link), and `x` if the owner may execute it. Other
    permissions are left out: a checkout elsewhere has others.
    """
    digest = hashlib.sha256()
    # No two paths are the same, so states, which have no order, are never compared.
    for path, state in sorted((os.fsencode(path), state) for path, state in states.items()):
        digest.update(b"\0".join((path, *_fields(state), b"")))
    return digest.hexdigest()


def digest_of_state(state: State | None) -> str:
    """sha256 (64 hex digits) of what stands at one path: the last three of those fields."""
    return hashlib.sha256(b"\0".join((*_fields(state), b""))).hexdigest()


def _fields(state: State | None) -> tuple[bytes, bytes, bytes]:
    if state is None:
        return b"folder", b"", b""
    held = state.sha256.encode() or os.fsencode(state.target)
    return state.kind.encode(), held, b"x" if state.is_executable else b""
