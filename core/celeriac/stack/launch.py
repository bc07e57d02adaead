"""Becomes a service: gives up root, ties its life to the supervisor's, and executes the program.

    python -I -S launch.py SUPERVISOR_PID END ACCOUNT PROGRAM ARGUMENT…

END says how the program dies if the supervisor does: `signal:NUMBER`, which the kernel sends
(Linux), or `pipe:FD`, the reading end of a pipe whose other end only the supervisor has, or `-` for
not at all. ACCOUNT is `UID:GID`, or `-` to stay who we are.

A program of its own, and not a `preexec_fn`: that would run Python between fork and exec of a
process with threads, which may deadlock. It imports next to nothing and takes some 15 ms.
"""

import ctypes
import os
import signal
import sys
from typing import NoReturn

PR_SET_PDEATHSIG = 1


def main(supervisor: str, end: str, account: str, *command: str) -> NoReturn:
    if account != "-":
        uid, gid = map(int, account.split(":"))
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    kind, _, value = end.partition(":")
    if kind == "signal":
        # After setuid, which would clear it.
        die_with_parent(int(value))
    elif kind == "pipe":
        leave_guard(int(value))
    if os.getppid() != int(supervisor):
        sys.exit("the supervisor ended before the program was started")
    try:
        os.execv(command[0], command)  # noqa: S606 - what we are here for
    except OSError as error:
        sys.exit(f"cannot run {command[0]}: {error.strerror}")


def die_with_parent(number: int) -> None:
    """Ask the kernel for a signal when the thread that started us ends (prctl(2))."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")


def leave_guard(pipe: int) -> None:
    """Leave a child behind that kills the whole group when the pipe's other end is closed."""
    if os.fork() != 0:
        os.close(pipe)
        return
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these are meant for the program
    os.read(pipe, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
