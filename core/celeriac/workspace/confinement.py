"""Paths inside a workspace, opened so that there is no way out of it.

A path is walked from the workspace's own descriptor, one component at a time, each opened relative
to the one before with O_NOFOLLOW. So there is nothing between a check and its use: whoever swaps a
folder for a symbolic link meanwhile makes the walk fail, not stray (open(2), "Rationale for
openat()"). Symbolic links are never followed, not even to a place inside, and a file with a second
hard link is not opened, since its other name may be anywhere.

This confines paths. It does not confine commands: they run with the worker's own rights.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from celeriac.errors import ToolError

MAX_PATH_BYTES = 4000
MAX_NAME_BYTES = 255
MAX_DEPTH = 100  # folders: each is opened anew from the top, so the cost grows with the square
TEMPORARY_PREFIX = ".celeriac-"
"""Of files that are about to take another one's place. Never listed, read or kept."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO would block an open without O_NONBLOCK until somebody writes.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def parts_of(path: str) -> tuple[str, ...]:
    """The components of a relative path; empty for the workspace itself.

    Raises `ToolError` for a path that leads elsewhere, or into `.git`, whatever stands on the disk.
    """
    if "\0" in path:
        raise ToolError(f"the path {path!r} holds a NUL character, which no file's name can")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise ToolError(f"the path {path!r} cannot be a file's name on this machine") from None
    if size > MAX_PATH_BYTES:
        raise ToolError(f"the path has {size} bytes; at most {MAX_PATH_BYTES} are allowed")
    if path.startswith("/"):
        raise ToolError(
            f"{path!r} is an absolute path; give one relative to the workspace, such as 'src/a.py'"
        )
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if len(parts) > MAX_DEPTH:
        raise ToolError(f"the path has {len(parts)} levels; at most {MAX_DEPTH} are allowed")
    for part in parts:
        _check_name(path, part)
    return parts


def _check_name(path: str, name: str) -> None:
    if name == "..":
        raise ToolError(f"{path!r} climbs out with '..'; give the path from the workspace's top")
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise ToolError(f"{path!r} has a name of more than {MAX_NAME_BYTES} bytes")
    if is_of_git(name):
        raise ToolError(f"{path!r} is part of a git repository's own data, which no tool touches")
    if name.startswith(TEMPORARY_PREFIX):
        raise ToolError(f"{path!r}: names that begin with {TEMPORARY_PREFIX} are taken")


def is_of_git(name: str) -> bool:
    """Whether `name` is git's own folder, on a file system that ignores case or final dots too."""
    plain = name.rstrip(" .").casefold()
    return plain in (".git", "git~1")


@contextmanager
def opened_root(folder: Path) -> Iterator[int]:
    """A descriptor of the workspace's folder. The path up to it is the operator's and trusted."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_folder(root: int, parts: Sequence[str]) -> Iterator[int]:
    """A descriptor of a folder inside the workspace, for as long as the block lasts."""
    descriptor = os.open(".", _FOLDER, dir_fd=root)
    try:
        for count, part in enumerate(parts, 1):
            inner = _open(part, _FOLDER, descriptor, parts[:count])
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def make_folders(root: int, parts: Sequence[str]) -> list[str]:
    """Make the folders of `parts` that are not there yet; the paths of those that were made."""
    made = []
    for count, part in enumerate(parts, 1):
        with opened_folder(root, parts[: count - 1]) as above:
            try:
                os.mkdir(part, dir_fd=above)
                os.fsync(above)
                made.append("/".join(parts[:count]))
            except FileExistsError:
                pass  # what it is shows when it is opened
            except OSError as error:
                raise _refusal(error, parts[:count]) from error
    return made


def kind_of(folder: int, name: str) -> os.stat_result | None:
    """What stands under `name`, not followed; None if nothing does."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None


def names_in(folder: int) -> list[str]:
    """The names in an opened folder, sorted."""
    with os.scandir(folder) as scan:
        return sorted(entry.name for entry in scan)


def open_file(folder: int, name: str, path: str) -> int:
    """A descriptor to read the regular file `name`, or `ToolError`. Never blocks.

    `path` is for the message.
    """
    # Asked before it is opened as well: to open some devices does something.
    found = kind_of(folder, name)
    if found is not None:
        _check_regular(found, path)
    descriptor = _open(name, _FILE, folder, (path,))
    try:
        _check_regular(os.fstat(descriptor), path)
    except ToolError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(found: os.stat_result, path: str) -> None:
    if stat.S_ISREG(found.st_mode):
        if found.st_nlink > 1:
            raise ToolError(
                f"{path!r} has {found.st_nlink} hard links, so it may be a file outside the "
                "workspace as well; it is neither read nor changed"
            )
        return
    raise ToolError(f"{path!r} is {described(found)}, not a regular file")


def described(found: os.stat_result) -> str:
    for test, word in _KINDS:
        if test(found.st_mode):
            return word
    return "of an unknown kind"


_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link, which is never followed"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


def _open(name: str, flags: int, folder: int, parts: Sequence[str]) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise _refusal(error, parts) from error


def _refusal(error: OSError, parts: Sequence[str]) -> ToolError:
    path = "/".join(parts)
    match error.errno:
        case errno.ENOENT:
            return ToolError(f"there is no {path!r} in the workspace")
        case errno.ELOOP | errno.EMLINK:
            return ToolError(f"{path!r} is a symbolic link, which is never followed")
        case errno.ENOTDIR:
            return ToolError(f"{path!r} is no folder, or a symbolic link, which is never followed")
        case _:
            return ToolError(f"{path!r} cannot be opened: {error.strerror}")
