"""The process between a worker and a command: whatever becomes of the worker, the command ends.

Run as a script by `commands`, with only the standard library: `guard.py STATUS FOLDER SECONDS
BYTES -- COMMAND...`, the first two being descriptors. Its standard input is a pipe that the worker
holds: when that closes, because the worker wants it or was killed, everything that the command
started is killed. Processes that left the command's group are found as well, since their orphans
become children of this process (prctl(2), PR_SET_CHILD_SUBREAPER; Linux only).
"""

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

POLL_SECONDS = 0.01
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> None:
    status, folder, seconds, file_bytes = arguments[:4]
    os.fchdir(int(folder))
    os.close(int(folder))
    os.set_inheritable(int(status), False)  # noqa: FBT003 - the only form it has
    _adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), int(file_bytes)))
    try:
        command = subprocess.Popen(  # noqa: S603 - what the command is, is not decided here
            arguments[5:], stdin=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as error:
        _tell(int(status), error=f"{arguments[5]}: {error.strerror}")
        return
    _forget_output()
    give_up_at = time.monotonic() + float(seconds)
    ended = "exited"
    while not _has_ended(command.pid):
        if select.select([0], [], [], POLL_SECONDS)[0]:
            ended = "given_up"
            break
        if time.monotonic() > give_up_at:
            ended = "timed_out"
            break
    # The group's number is the command's, which nobody else can get before it is waited for.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(command.pid, signal.SIGKILL)
    code = command.wait()
    _kill_the_rest()
    _tell(int(status), ended=ended, exit_code=code if ended == "exited" else None)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _forget_output() -> None:
    """The pipe of the output ends when the command's processes have ended."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    os.close(nothing)


def _kill_the_rest() -> None:
    """Until there is no child left: a process that forks while it is killed is met again."""
    while True:
        for pid in _descendants():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(POLL_SECONDS)


def _descendants() -> list[int]:
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _tell(status: int, **said: object) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(status, json.dumps(said).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
