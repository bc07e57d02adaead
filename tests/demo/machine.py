"""What a demo does to the machine, looked at from outside."""

import signal
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import eventually


def processes_in(folder: Path) -> list[psutil.Process]:
    """Every living process that works in the folder or below it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(
                folder
            ):
                found.append(process)
    return found


def assert_no_process_left(folder: Path) -> None:
    eventually(
        lambda: processes_in(folder),
        until=lambda found: not found,
        deadline_seconds=20,
        what="no process of the demo",
    )


def kill_everything(folder: Path) -> None:
    for process in processes_in(folder):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    assert_no_process_left(folder)
