"""What a stack does to the machine, looked at from outside: its processes, ports and folders."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.waiting import eventually


def processes_of(data: Path) -> list[psutil.Process]:
    """Every living process that works somewhere in the folder, or whose command names it, or that
    was told of it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            told = [process.cwd(), *process.cmdline(), process.environ().get("CELERIAC_DATA", "")]
            if process.status() != psutil.STATUS_ZOMBIE and any(
                is_within(data, Path(path)) for path in told
            ):
                found.append(process)
    return found


def is_within(folder: Path, path: Path) -> bool:
    return path == folder or folder in path.parents


def assert_no_process_left(data: Path) -> None:
    eventually(
        lambda: processes_of(data),
        until=lambda found: not found,
        what="no process of the stack",
    )


def kill_everything(data: Path) -> None:
    """SIGKILL to every process of the stack at once."""
    for process in processes_of(data):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    assert_no_process_left(data)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system in memory at the folder; the test is skipped where none can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system")
    mount = ["mount", "-t", "tmpfs", "-o", options, "celeriac-test", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
