"""What has been done to a workspace, in order: one small file for each change, written before it.

A record says what stood at each path before and what stands there afterwards. Whoever finds out
what came of a lost call compares the two with what is there; whoever takes changes back follows the
records from the last one. Read and written under the workspace's lock only, except by `find`.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from celeriac.codec import JsonValue
from celeriac.evidence import Changes, Standing
from celeriac.workspace.digests import ABSENT, State, digest_of_state
from celeriac.workspace.place import Workspace, write_whole

_NAME = re.compile(r"(\d{8})-([0-9a-f]{16})\.json")


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one path."""

    path: str
    before: State
    after: State
    before_blob: str | None = None
    """Where the content before is kept, by the snapshots' name for it; None if it is not: there was
    none, or it is never kept (ignored, secret, too large)."""
    after_blob: str | None = None
    """Of a rollback: where the content is kept that it puts back."""


@dataclass(frozen=True, slots=True)
class Record:
    """One call that changes the workspace, or one rollback."""

    number: int
    key: str
    token: str
    """Of this attempt: a call that is made again with the same key has another one."""
    tool: str
    run_id: str
    call_id: str
    snapshot: str
    """Of the workspace before; 40 or 64 hex digits."""
    is_done: bool = False
    changes: Sequence[Change] = ()
    made_folders: Sequence[str] = ()
    temporary: str = ""
    """Path of the new content before it is put in place."""
    kind: Literal["change", "command", "rollback"] = "change"
    target: str = ""
    """Of a rollback: the snapshot that it goes back to."""
    result: JsonValue = None
    at: str = ""

    @property
    def name(self) -> str:
        return f"{self.number:08d}-{short(self.key)}.json"


def find(workspace: Workspace, key: str) -> Record | None:
    """The record of the last attempt at the call with this key."""
    numbers = [number for number, name in _names(workspace) if name == short(key)]
    return _read(workspace, f"{max(numbers):08d}-{short(key)}.json") if numbers else None


def all_records(workspace: Workspace) -> list[Record]:
    """Oldest first; of a call that was made again only the last attempt."""
    names = _names(workspace)
    latest = {name: number for number, name in names}
    return [
        _read(workspace, f"{number:08d}-{name}.json")
        for number, name in names
        if latest[name] == number
    ]


def half_rolled_back(workspace: Workspace) -> Record | None:
    """The rollback that was begun and is not done; there is one at most."""
    note = workspace.kept / "rollback"
    record = find(workspace, note.read_text()) if note.exists() else None
    return None if record is None or record.is_done else record


def note_rollback(workspace: Workspace, key: str) -> None:
    """Say that this one is about to begin. Without its record it has not."""
    write_whole(workspace.kept / "rollback", key.encode())


def next_number(workspace: Workspace) -> int:
    return max((number for number, _ in _names(workspace)), default=0) + 1


def write(workspace: Workspace, record: Record) -> None:
    stamped = replace(record, at=record.at or datetime.now(UTC).isoformat())
    text = json.dumps(to_json(stamped), sort_keys=True)  # ASCII, so odd names survive
    write_whole(workspace.kept / "records" / record.name, text.encode())


def _names(workspace: Workspace) -> list[tuple[int, str]]:
    """Number and short key of each record, oldest first."""
    folder = workspace.kept / "records"
    if not folder.is_dir():
        return []
    found = filter(None, (_NAME.fullmatch(path.name) for path in folder.iterdir()))
    return sorted((int(name[1]), name[2]) for name in found)


def short(key: str) -> str:
    """16 hex digits that stand for a call's key in the names of files."""
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _read(workspace: Workspace, name: str) -> Record:
    stored = json.loads((Path(workspace.kept) / "records" / name).read_text())
    stored["changes"] = [_change(change) for change in stored["changes"]]
    return Record(**stored)


def _change(stored: dict[str, Any]) -> Change:
    return Change(
        stored["path"],
        State.from_json(stored["before"]),
        State.from_json(stored["after"]),
        stored["before_blob"],
        stored["after_blob"],
    )


def changes_of(workspace: Workspace, record: Record) -> Changes:
    """What the record is evidence of."""
    count = record.result.get("changed_count") if isinstance(record.result, dict) else None
    return Changes(
        str(workspace.files),
        {
            change.path: (_standing(change.before), _standing(change.after))
            for change in record.changes
        },
        is_complete=count is None or count == len(record.changes),
    )


def _standing(state: State) -> Standing:
    return None if state == ABSENT else digest_of_state(state)


def to_json(record: Record) -> dict[str, Any]:
    """The record as it is stored, and shown."""
    fields = {name: getattr(record, name) for name in Record.__slots__}
    fields["changes"] = [
        {
            "path": change.path,
            "before": change.before.to_json(),
            "after": change.after.to_json(),
            "before_blob": change.before_blob,
            "after_blob": change.after_blob,
        }
        for change in record.changes
    ]
    return fields
