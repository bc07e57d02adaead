"""Taking changes back, but only where the workspace still holds what an agent wrote.

A rollback goes through the records from the last one back to its target. At each path it starts
from what is there now, and steps back over a change only if that is what the change left behind. So
a file that a person has edited since is not touched, and one that a person edited between two
changes goes back to that edit and no further. Both are reported.

It is a change like any other: a snapshot before it, a record with its whole plan before the first
file is touched, and each file replaced at once. One that was killed half-way is finished by the
same call, from its record. And since it has a record, a rollback can be rolled back.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from celeriac.codec import JsonValue
from celeriac.errors import Conflict, InvalidInput, ToolError
from celeriac.recovery import Done, Finding, NotDone
from celeriac.testpoints import reach
from celeriac.workspace import records, snapshots
from celeriac.workspace.changing import (
    File,
    move_in,
    temporary_name,
    write_temporary,
)
from celeriac.workspace.confinement import make_folders, opened_folder
from celeriac.workspace.digests import ABSENT, State, state_of
from celeriac.workspace.place import Workspace
from celeriac.workspace.records import Change, Record
from celeriac.workspace.shadow import ShadowRepository

_SNAPSHOT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass
class Report:
    """What a rollback did, path by path, and what it left alone and why."""

    restored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Left as they are, or not taken back all the way: somebody else's edits are in them, or what
    stood there before is not known."""
    failed: dict[str, str] = field(default_factory=dict)
    lost_commands: list[str] = field(default_factory=list)
    """Keys of commands that were begun and never seen to end. Nobody knows what they changed, so
    nothing of it is taken back."""

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "restored": [*sorted(self.restored)],
            "removed": [*sorted(self.removed)],
            "kept": [{"path": path, "why": why} for path, why in sorted(self.kept.items())],
            "failed": [{"path": path, "why": why} for path, why in sorted(self.failed.items())],
            "lost_commands": [*self.lost_commands],
            "is_partial": bool(self.kept or self.failed or self.lost_commands),
        }


def roll_back(
    workspace: Workspace, snapshot: str, *, key: str | None = None
) -> dict[str, JsonValue]:
    """Take back all that was done since a snapshot, in the sense of this module; the report.

    `snapshot` is the full hash of a snapshot that was made before some call of this workspace. A
    rollback with the same `key` is the same rollback: it is finished if it was killed, and answered
    with its report if it is done; without one, a half done rollback to that snapshot is finished
    or a new one made. Raises `InvalidInput` for any other target, `Conflict` if another
    rollback is half done.
    """
    if not _SNAPSHOT.fullmatch(snapshot):
        raise InvalidInput(f"{snapshot!r} is no snapshot: give all 40 or 64 hex digits of its hash")
    with workspace.locked() as lock:
        known = records.all_records(workspace)
        since = [record.number for record in known if record.snapshot == snapshot]
        if not since:
            raise InvalidInput(f"{snapshot} is no snapshot of the workspace {workspace.files}")
        undone = [record for record in known if record.number >= min(since)]
        if key is None:
            half = records.half_rolled_back(workspace)
            is_this = half is not None and half.target == snapshot
            key = half.key if half is not None and is_this else f"rollback:{secrets.token_hex(8)}"
        return _take_back(workspace, lock, undone, snapshot, key)


def undo_call(workspace: Workspace, undone_key: str, *, key: str) -> dict[str, JsonValue]:
    """Take back one call alone, whose key is `undone_key`; the report.

    Raises `ToolError`: with nothing changed, if it is a command whose end nobody saw, or if none of
    it can be taken back; or if a file could not be put back, which the same call then tries again.
    Where somebody else's edits stood in the way of a part, the report says so (`is_partial`).
    """
    with workspace.locked() as lock:
        record = records.find(workspace, undone_key)
        if record is None:
            raise ToolError(
                f"the workspace {workspace.files} has no record of the call {undone_key}"
            )
        if _is_lost_command(record):
            raise ToolError(
                f"nobody saw the end of the command {undone_key}, so what it changed is not known, "
                "and it is left as it is"
            )
        report = _take_back(workspace, lock, [record], record.snapshot, key)
        if report["failed"]:
            raise ToolError(f"not all could be taken back: {report['failed']}")
        if report["kept"] and not report["restored"] and not report["removed"]:
            raise ToolError(f"nothing could be taken back: {report['kept']}")
        return report


def find_rollback(workspace: Workspace, key: str) -> Finding:
    """Whether the rollback with this key is done; one that is half done, or that could take nothing
    back, is to be called again."""
    record = records.find(workspace, key)
    return Done(record.result) if record is not None and _is_answer(record) else NotDone()


def _is_answer(record: Record) -> bool:
    """Whether it is done and has taken something back, or found nothing to. One that only met other
    people's edits may be tried anew, when they are out of the way; and so may one that failed."""
    match record.result:
        case {"failed": [_, *_]}:
            return False
        case {"restored": [], "removed": [], "kept": kept}:
            return record.is_done and not kept
    return record.is_done


def _is_lost_command(record: Record) -> bool:
    return record.kind == "command" and not record.is_done


def _take_back(
    workspace: Workspace, lock: int, undone: Sequence[Record], target: str, key: str
) -> dict[str, JsonValue]:
    record = records.find(workspace, key)
    if record is not None and _is_answer(record):
        assert isinstance(record.result, dict)
        return record.result
    shadow = ShadowRepository(workspace, lock)
    with workspace.opened() as root:
        if record is None or record.is_done:
            _refuse_beside_another(workspace)
            record = _planned(workspace, shadow, root, undone, target, key)
            records.note_rollback(workspace, key)
            records.write(workspace, record)
        reach("workspace.rollback_planned")
        report = _report_so_far(record)
        for change in record.changes:
            _apply(shadow, root, record, change, report)
            reach("workspace.rollback_applied")
        for path in sorted(record.made_folders, key=len, reverse=True):
            _remove_if_empty(root, path)
    told = {**report.to_json(), "to": target, "before": record.snapshot}
    records.write(workspace, replace(record, is_done=True, result=told))
    return told


def _refuse_beside_another(workspace: Workspace) -> None:
    if (other := records.half_rolled_back(workspace)) is not None:
        raise Conflict(
            f"the rollback {other.key} to {other.target} is half done; finish it first, with its "
            "own key"
        )


def _planned(
    workspace: Workspace,
    shadow: ShadowRepository,
    root: int,
    undone: Sequence[Record],
    target: str,
    key: str,
) -> Record:
    before = snapshots.take(shadow, root, f"rollback {key}\n")
    kept_now = shadow.files(before.commit)
    kept: dict[str, JsonValue] = {}
    changes = []
    histories: dict[str, list[Change]] = {}
    for record in undone:
        for change in record.changes:
            histories.setdefault(change.path, []).append(change)
    for path, history in histories.items():
        now = state_of(root, tuple(path.split("/")))
        wanted, blob, problem = _stepped_back(now, history)
        if problem:
            kept[path] = problem
        if wanted != now:
            current = kept_now[path][1] if path in kept_now else None
            changes.append(Change(path, now, wanted, current, blob))
    lost: list[JsonValue] = [record.key for record in undone if _is_lost_command(record)]
    made = [folder for record in undone for folder in record.made_folders]
    return Record(
        number=records.next_number(workspace),
        key=key,
        token=secrets.token_hex(8),
        tool="rollback",
        run_id=undone[-1].run_id,
        call_id="",
        snapshot=before.commit,
        changes=changes,
        made_folders=made,
        kind="rollback",
        target=target,
        result={"kept": kept, "lost_commands": lost},
    )


def _stepped_back(now: State, history: Sequence[Change]) -> tuple[State, str | None, str]:
    """How far the changes of a path can be taken back from what is there now, oldest first in
    `history`: the state, where its content is kept, and what stood in the way."""
    if now == history[0].before:
        return now, None, ""
    state, blob, has_stepped = now, None, False
    for change in reversed(history):
        if change.after == state and change.before != change.after:
            if change.before.kind == "other":
                return state, blob, f"before the change there was {change.before.target} here"
            if change.before.kind == "file" and change.before_blob is None:
                return (
                    state,
                    blob,
                    ("what stood here before is not kept: it is ignored, a secret or too large"),
                )
            state, blob, has_stepped = change.before, change.before_blob, True
        elif change.before != state:
            if has_stepped:
                return (
                    state,
                    blob,
                    (
                        "somebody else's edit between two changes was kept, and with it what the "
                        "changes before it wrote"
                    ),
                )
            return now, None, "it is not what the last call wrote: somebody else has changed it"
        # Else the change never came about, or was taken back by somebody.
    return state, blob, ""


def _report_so_far(record: Record) -> Report:
    """What was known when the rollback was planned."""
    match record.result:
        case {"kept": dict(kept), "lost_commands": list(lost)}:
            kept_paths = {path: str(why) for path, why in kept.items()}
            return Report(kept=kept_paths, lost_commands=[str(command) for command in lost])
    raise ValueError(f"the record {record.name} has no plan of a rollback")


def _apply(
    shadow: ShadowRepository, root: int, record: Record, change: Change, report: Report
) -> None:
    parts = tuple(change.path.split("/"))
    now = state_of(root, parts)
    if now not in (change.before, change.after):
        report.kept[change.path] = "somebody else has changed it during the rollback"
        return
    try:
        if now != change.after:
            _put_back(shadow, root, parts, record, change)
    except (OSError, ToolError, ValueError) as error:
        report.failed[change.path] = str(error)
        return
    (report.removed if change.after == ABSENT else report.restored).append(change.path)


def _put_back(
    shadow: ShadowRepository, root: int, parts: tuple[str, ...], record: Record, change: Change
) -> None:
    if change.after == ABSENT:
        with opened_folder(root, parts[:-1]) as folder:
            move_in(folder, None, parts[-1])
            os.fsync(folder)
        return
    make_folders(root, parts[:-1])
    temporary = temporary_name(record.key, record.token)
    with opened_folder(root, parts[:-1]) as folder:
        with suppress(FileNotFoundError):  # of the attempt that was killed
            os.unlink(temporary, dir_fd=folder)
        if change.after.kind == "link":
            os.symlink(change.after.target, temporary, dir_fd=folder)
        else:
            content = shadow.content(change.after_blob or "")
            if hashlib.sha256(content).hexdigest() != change.after.sha256:
                raise ToolError("what is kept of it is not what stood there; it was left alone")
            write_temporary(folder, temporary, File(content, change.after.permissions))
        move_in(folder, temporary, parts[-1])
        os.fsync(folder)


def _remove_if_empty(root: int, path: str) -> None:
    parts = tuple(path.split("/"))
    with suppress(OSError, ToolError), opened_folder(root, parts[:-1]) as folder:
        os.rmdir(parts[-1], dir_fd=folder)
