"""What a killed server leaves running on its data: processes that have not noticed yet."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PATIENCE_SECONDS = 5.0
"""Children of a killed PostgreSQL end when they look up from what they do: within milliseconds,
unless a long statement runs in one."""

CAN_LOOK = Path("/proc").is_dir()

_waiting_since: dict[Path, float] = {}


def are_gone(data: Path) -> bool:
    """Whether no process works in the folder `data` any more; those that stay too long are killed.

    Safe only under the folder's lock: then none of them can belong to somebody's stack. Where there
    is no /proc (macOS) it sees nothing (`CAN_LOOK`), and the server's own look must do.
    """
    pids = _working_in(data)
    if not pids:
        _waiting_since.pop(data, None)
        return True
    began = _waiting_since.setdefault(data, time.monotonic())
    if time.monotonic() - began > PATIENCE_SECONDS:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return False


def _working_in(data: Path) -> list[int]:
    folder = data.resolve()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        # A zombie has no folder; neither has, for us, a process of somebody else.
        with suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found
