"""A service's log: a file that the service itself appends to, kept within bounds from outside.

A file, and not a pipe that the supervisor reads: a supervisor that is suspended or slow must not
stop the services, nor may its death take their last words.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

LARGEST_BYTES = 5_000_000
KEPT = 3  # older logs: NAME.log.1 is the youngest
TAIL_BYTES = 4000


def open_log(log: Path) -> int:
    """A descriptor that appends. Raises `OSError`."""
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def rotate(log: Path) -> None:
    """Put a log that has grown too large aside. What is written in that moment may be lost."""
    # A full disk, or a log that somebody has deleted, is no reason to end anything.
    with suppress(OSError):
        if log.stat().st_size < LARGEST_BYTES:
            return
        for number in range(KEPT, 1, -1):
            with suppress(FileNotFoundError):
                _numbered(log, number - 1).replace(_numbered(log, number))
        shutil.copyfile(log, _numbered(log, 1))
        # The service holds the file open, so it is emptied and not replaced.
        os.truncate(log, 0)


def size(log: Path) -> int:
    """Where what is written next begins."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def last_words(log: Path, since: int = 0, lines: int = 3) -> str:
    """The last lines written after position `since`, in one line; empty if there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, size(log) - TAIL_BYTES))
            written = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return " / ".join([line.strip() for line in written if line.strip()][-lines:])


def _numbered(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
