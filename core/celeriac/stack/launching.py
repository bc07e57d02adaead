"""Command lines that begin with `launch.py`: a program that dies with us, as another account."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from celeriac.stack.account import Account

LAUNCHER = Path(__file__).with_name("launch.py")
KERNEL_TELLS = sys.platform == "linux"
"""Whether the kernel itself can end a child with its parent. Elsewhere a pipe must do."""


def launched(
    command: Sequence[str],
    *,
    account: Account | None,
    orphan_signal: signal.Signals = signal.SIGKILL,
    guard: int | None = None,
) -> list[str]:
    """`command`, to be started by the thread that it is to die with.

    `guard` is the reading end of a pipe that the program is given. Without one, and where the
    kernel does not tell, it may outlive us.
    """
    end = "-"
    if guard is not None:
        end = f"pipe:{guard}"
    elif KERNEL_TELLS:
        end = f"signal:{orphan_signal:d}"
    return [
        sys.executable,
        "-I",
        "-S",
        str(LAUNCHER),
        str(os.getpid()),
        end,
        f"{account.uid}:{account.gid}" if account is not None else "-",
        *command,
    ]
