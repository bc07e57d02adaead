"""Running a command in the workspace: bounded in time and output, and never left running.

A snapshot before and one after tell what it changed. A record says that it was begun, and later
that it has ended and with what result: a worker that died in between leaves a command whose outcome
nobody knows. It is not confined: it may do whatever the worker's own user may (docs/workspace.md).
"""

import json
import os
import secrets
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO

from celeriac.codec import JsonValue
from celeriac.context import ToolContext
from celeriac.errors import ToolError
from celeriac.recovery import Done, Finding, NotDone, Unclear
from celeriac.testpoints import reach
from celeriac.workspace import guard, records, snapshots
from celeriac.workspace.changing import refuse_if_half_rolled_back
from celeriac.workspace.confinement import opened_folder, parts_of
from celeriac.workspace.digests import ABSENT, State
from celeriac.workspace.place import Workspace, note_run
from celeriac.workspace.records import Change, Record
from celeriac.workspace.shadow import ShadowRepository
from celeriac.workspace.snapshots import Snapshot

MAX_OUTPUT_BYTES = 60_000  # kept of the output: so much of its beginning and of its end together
MAX_WRITTEN_BYTES = 1_000_000_000  # of one file that a command writes
MAX_TOLD_PATHS = 200
MAX_RECORDED_PATHS = 10_000
GUARD_SECONDS = 10.0  # for the guard to begin, and to kill what is left
PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""What a command sees of the worker's environment. The rest may hold secrets."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `exit_code` is None if it was killed at the end of its time."""

    exit_code: int | None
    output: str
    output_bytes: int


class _Output:
    """The beginning and the end of what a command writes; the middle is counted and dropped."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0
        self._thread = threading.Thread(target=self._read, daemon=True, name="celeriac-output")
        self._thread.start()

    def text(self) -> str:
        self._thread.join(GUARD_SECONDS)
        dropped = self.size - len(self._head) - len(self._tail)
        middle = b"" if not dropped else f"\n[… {dropped} bytes left out …]\n".encode()
        return (bytes(self._head) + middle + bytes(self._tail)).decode(errors="backslashreplace")

    def _read(self) -> None:
        half = MAX_OUTPUT_BYTES // 2
        while chunk := os.read(self._stream.fileno(), 65536):
            self.size += len(chunk)
            room = half - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:]
            del self._tail[:-half]


def run_command(
    workspace: Workspace,
    context: ToolContext,
    command: Sequence[str],
    *,
    folder: str,
    seconds: float,
    environment: Mapping[str, str],
) -> dict[str, JsonValue]:
    """Run a command to its end or to the end of its time; what it wrote, and what it changed.

    Raises `ToolError` if it was not begun.
    """
    if not command or not command[0] or any("\0" in word for word in command):
        raise ToolError("a command is a list of words, the program first, without NUL characters")
    parts = parts_of(folder)
    with workspace.opened() as root, workspace.locked() as lock:
        refuse_if_half_rolled_back(workspace)
        shadow = ShadowRepository(workspace, lock)
        note_run(context.tenant_id, context.run_id, workspace)
        before = snapshots.take(shadow, root, f"{context.tool} {context.idempotency_key}\n")
        record = Record(
            number=records.next_number(workspace),
            key=context.idempotency_key,
            token=secrets.token_hex(8),
            tool=context.tool,
            run_id=context.run_id,
            call_id=context.call_id,
            snapshot=before.commit,
            kind="command",
        )
        with opened_folder(root, parts) as inside:
            records.write(workspace, record)
            reach("workspace.before_command", context.step)
            try:
                ended = run(command, inside, seconds, _environment(workspace, environment), [lock])
            except ToolError:
                records.write(workspace, replace(record, is_done=True))
                raise
        reach("workspace.after_command", context.step)
        after = snapshots.take(shadow, root, f"after {context.tool} {context.idempotency_key}\n")
        changes = _changes(shadow, before, after)
        told = _told(command, ended, seconds, changes)
        done = replace(record, is_done=True, changes=changes[:MAX_RECORDED_PATHS], result=told)
        records.write(workspace, done)
        context.note_changes(records.changes_of(workspace, done))
        return told


def find_command(workspace: Workspace, context: ToolContext) -> Finding:
    """What came of a command: it has ended, was not begun, or nobody knows."""
    record = records.find(workspace, context.idempotency_key)
    if record is None:
        return NotDone()
    if record.is_done and record.result is None:
        return NotDone()
    if record.is_done:
        context.note_changes(records.changes_of(workspace, record))
        return Done(record.result)
    return Unclear("the command was begun, and its worker was lost before it had ended")


def run(
    command: Sequence[str],
    folder: int,
    seconds: float,
    environment: Mapping[str, str],
    held: Sequence[int] = (),
) -> Ended:
    """Run a command in an opened folder, under a guard that outlives this process if need be.

    The descriptors `held` stay open until nothing of the command is left. Raises `ToolError` if the
    program cannot be started, `RuntimeError` if the guard was killed.
    """
    status, status_end = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - the guard is ours
            [
                *(sys.executable, "-I", "-S", guard.__file__),
                *(str(status_end), str(folder), str(seconds), str(MAX_WRITTEN_BYTES), "--"),
                *command,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=(status_end, folder, *held),
            start_new_session=True,
        )
    finally:
        os.close(status_end)
    assert process.stdin is not None
    assert process.stdout is not None
    with os.fdopen(status, "rb") as said, process.stdout, process.stdin:
        output = _Output(process.stdout)
        give_up_at = time.monotonic() + seconds + GUARD_SECONDS
        try:
            process.wait(max(0.0, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.stdin.close()  # the guard kills all, and ends
            process.wait()
        text = output.text()
        ended = json.loads(said.read() or b"{}")
    if "error" in ended:
        raise ToolError(f"the command could not be started: {ended['error']}")
    if "ended" not in ended:
        raise RuntimeError("the process that guards the command was killed; its outcome is unknown")
    return Ended(ended["exit_code"], text, output.size)


def _environment(workspace: Workspace, more: Mapping[str, str]) -> dict[str, str]:
    home = workspace.kept / "home"
    home.mkdir(exist_ok=True)
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    return {"PATH": os.defpath, **passed, "HOME": str(home), "CI": "1", **more}


def _told(
    command: Sequence[str], ended: Ended, seconds: float, changes: Sequence[Change]
) -> dict[str, JsonValue]:
    paths: list[JsonValue] = [change.path for change in changes[:MAX_TOLD_PATHS]]
    told: dict[str, JsonValue] = {
        "command": list(command),
        "exit_code": ended.exit_code,
        "timed_out": ended.exit_code is None,
        "output": ended.output,
        "output_bytes": ended.output_bytes,
        "is_truncated": ended.output_bytes > MAX_OUTPUT_BYTES,
        "changed": paths,
        "changed_count": len(changes),
    }
    if ended.exit_code is None:
        told["note"] = f"it was killed after {seconds:g} s, with all that it had started"
    return told


def _changes(shadow: ShadowRepository, before: Snapshot, after: Snapshot) -> list[Change]:
    """What differs between two snapshots. Whoever else changed a file meanwhile is not told apart
    from the command."""
    old, new = shadow.files(before.commit), shadow.files(after.commit)
    differing = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    blobs = {each[path][1] for each in (old, new) for path in differing if path in each}
    digests = shadow.digests(sorted(blobs))

    def state(files: Mapping[str, tuple[int, str]], snapshot: Snapshot, path: str) -> State:
        if path not in files:
            return ABSENT
        mode, blob = files[path]
        if stat.S_ISLNK(mode):
            return State("link", target=os.fsdecode(shadow.content(blob)))
        return State("file", digests[blob], snapshot.permissions[path])

    return [
        Change(
            path,
            state(old, before, path),
            state(new, after, path),
            old[path][1] if path in old else None,
        )
        for path in differing
    ]
