"""`DATA/stack.json`: what a running stack tells other processes of the same user.

{database_url, broker_url, api_url, flower_url, services: [{name, pid, address}]}

Reading it needs no server and no driver: every command does so first.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from celeriac.errors import StackFailed

LOCK = "lock"
DESCRIPTION = "stack.json"
API_TOKEN = "api-token"  # noqa: S105 - the file, not what is in it


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    pid: int | None  # None while it is down
    address: str | None


@dataclass(frozen=True, slots=True)
class Description:
    """Where the parts of a stack are. The URLs contain passwords."""

    database_url: str
    broker_url: str
    api_url: str | None
    flower_url: str | None
    services: Sequence[Service]

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def read_description(data: Path) -> Description | None:
    """What the stack in the folder says about itself; None if there is none, or not yet.

    Raises `StackFailed` if it cannot be read. It may be that of a stack that was killed:
    `is_running` tells.
    """
    file = data / DESCRIPTION
    try:
        told = json.loads(file.read_text())
        return Description(**{**told, "services": [Service(**each) for each in told["services"]]})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise StackFailed(f"{file} was not written by this version of Celeriac: {error}") from error
    except OSError as error:
        raise StackFailed(f"cannot read {file}: {error.strerror}") from error


def is_running(data: Path) -> bool:
    """Whether some process runs the stack of this folder, ready or not.

    Its lock tells, which ends with it. To look takes the lock for a moment, which a stack that
    starts just then waits out.
    """
    try:
        lock = os.open(data / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False
