"""Named places in the code where a test can kill, freeze or delay this process.

Dead unless `CELERIAC_TEST_POINTS` arms them when the process starts; then a comma-separated list of
`NAME=ACTION` or `NAME@STEP=ACTION`, with the actions `kill` (SIGKILL to the own process group),
`stop` (SIGSTOP to the own process), `hold` (the thread never goes on, so that a test can kill the
process with many steps at one place) and a number of seconds to sleep. Each armed entry but `hold`
acts once per machine: a file in `CELERIAC_TEST_POINTS_DIR` remembers it, so that the process that
takes over is spared. `docs/step.md` lists the points.
"""

import os
import signal
import threading
import time
from pathlib import Path
from uuid import uuid4

_ANY_STEP = -1


def _parse(text: str) -> dict[tuple[str, int], str]:
    armed = {}
    for entry in filter(None, text.split(",")):
        place, _, action = entry.partition("=")
        name, _, step = place.partition("@")
        armed[name, int(step) if step else _ANY_STEP] = action
    return armed


_armed = _parse(os.environ.get("CELERIAC_TEST_POINTS", ""))


def reach(name: str, step: int = _ANY_STEP) -> None:
    """Say that the code is at this place, in this step of a run if it is in one."""
    if not _armed:
        return
    for key in ((name, step), (name, _ANY_STEP)):
        action = _armed.get(key)
        place = f"{name}@{key[1]}"
        if action == "hold":
            (_folder() / f"{place}.{uuid4().hex}").touch()
            threading.Event().wait()
        if action is not None and _is_first(place):
            _act(action)
            return


def _is_first(place: str) -> bool:
    try:
        (_folder() / place).open("x").close()
    except FileExistsError:
        return False
    return True


def _folder() -> Path:
    return Path(os.environ["CELERIAC_TEST_POINTS_DIR"])


def _act(action: str) -> None:
    if action == "kill":
        os.killpg(os.getpgid(0), signal.SIGKILL)
    elif action == "stop":
        # To this thread: sent to the process, it may stop another thread first, and this one would
        # go on for a while (it has been seen to commit its step).
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    else:
        time.sleep(float(action))
