"""Changing one file so that it is always either as before or as intended, and anybody can tell.

snapshot     the workspace as it is
temporary    the new content, whole and on the disk, beside the file that it will replace
record       what stood there, what is to stand there, and the name of the temporary
rename       the change
done         noted in the record

A death before the record leaves the file as it was, and no trace but a temporary that the next
attempt takes away. After the record, what is at the path tells whether the rename came about; if a
person has changed the file since, the temporary does: it is there exactly if it was not renamed.
"""

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from celeriac.codec import JsonValue
from celeriac.context import ToolContext
from celeriac.errors import ToolError, WorkspaceAway
from celeriac.recovery import Done, Finding, NotDone, Unclear
from celeriac.testpoints import reach
from celeriac.workspace import records, snapshots
from celeriac.workspace.confinement import (
    TEMPORARY_PREFIX,
    kind_of,
    make_folders,
    names_in,
    open_file,
    opened_folder,
    parts_of,
)
from celeriac.workspace.digests import ABSENT, CHUNK_BYTES, PERMISSIONS, State, state_of
from celeriac.workspace.place import Workspace, note_run
from celeriac.workspace.records import Change, Record
from celeriac.workspace.secret_files import is_secret
from celeriac.workspace.shadow import ShadowRepository

MAX_FILE_BYTES = 8_000_000  # of a file that a tool reads whole, or writes
NEW_FILE_PERMISSIONS = 0o644


@dataclass(frozen=True, slots=True)
class File:
    """A regular file, read whole."""

    content: bytes
    permissions: int

    @property
    def state(self) -> State:
        return State.of_file(self.content, self.permissions)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call wants at its path: a content, or None for no file, and what to tell the model."""

    content: bytes | None
    told: dict[str, JsonValue]


def change_file(
    workspace: Workspace,
    context: ToolContext,
    path: str,
    plan: Callable[[File | None], Plan],
    *,
    within_seconds: float,
) -> dict[str, JsonValue]:
    """Do what `plan` makes of the file at `path` (None if there is none), once and whole.

    Raises `ToolError` if nothing was changed; after the rename anything else. The change is given
    up if it has not come to the rename within the given time: others may take it for lost by then.
    """
    give_up_at = time.monotonic() + within_seconds
    parts = changeable(path)
    with workspace.opened() as root, workspace.locked() as lock:
        refuse_if_half_rolled_back(workspace)
        before = read_file(root, parts)
        planned = plan(before)
        if planned.content is not None and before is None:
            _refuse_twin(root, parts)
        shadow = ShadowRepository(workspace, lock)
        taken = snapshots.take(shadow, root, f"{context.tool} {context.idempotency_key}\n")
        reach("workspace.after_snapshot", context.step)
        note_run(context.tenant_id, context.run_id, workspace)
        change = _change(shadow, parts, before, planned)
        record = Record(
            number=records.next_number(workspace),
            key=context.idempotency_key,
            token=secrets.token_hex(8),
            tool=context.tool,
            run_id=context.run_id,
            call_id=context.call_id,
            snapshot=taken.commit,
            changes=[] if change.before == change.after else [change],
            result={"path": path, **planned.told, "state": change.after.to_json()},
        )
        if record.changes:
            record = _put(workspace, root, record, parts, planned.content, give_up_at, context.step)
        records.write(workspace, replace(record, is_done=True))
        context.note_changes(records.changes_of(workspace, record))
        assert isinstance(record.result, dict)
        return record.result


def find_change(workspace: Workspace, context: ToolContext) -> Finding:
    """Whether the call's change took effect: by its record and what stands at its path."""
    record = records.find(workspace, context.idempotency_key)
    if record is None:
        return NotDone()
    if record.is_done:  # whatever has become of the file since
        context.note_changes(records.changes_of(workspace, record))
        return Done(record.result)
    (change,) = record.changes
    with workspace.opened() as root:
        found = state_of(root, tuple(change.path.split("/")))
        if found == change.after:
            context.note_changes(records.changes_of(workspace, record))
            return Done(record.result)
        if found == change.before:
            return NotDone()
        if record.temporary and state_of(root, tuple(record.temporary.split("/"))) != ABSENT:
            return NotDone()
    return Unclear(
        f"{change.path} is neither what it was before the call nor what the call was to make of it"
    )


def changeable(path: str) -> tuple[str, ...]:
    """The components of a path that tools may read and change; else `ToolError`."""
    parts = parts_of(path)
    if not parts:
        raise ToolError("the path names the workspace itself, not a file in it")
    if is_secret(parts):
        raise ToolError(
            f"{path!r} is named like a file of secrets. What a tool reads or writes is stored, so "
            "such files are left to people; work with an example of it, such as .env.example"
        )
    return parts


def read_file(root: int, parts: tuple[str, ...]) -> File | None:
    """The file at a path, or None if nothing is there. `ToolError` if it is no regular file, too
    large, or linked from elsewhere."""
    path = "/".join(parts)
    if state_is_absent(root, parts):
        return None
    with opened_folder(root, parts[:-1]) as folder:
        descriptor = open_file(folder, parts[-1], path)
    try:
        about = os.fstat(descriptor)
        if about.st_size > MAX_FILE_BYTES:
            raise ToolError(
                f"{path!r} has {about.st_size} bytes; at most {MAX_FILE_BYTES} can be read"
            )
        # Read to the end, not to the size: the two differ in /proc and while somebody writes.
        content = b""
        while len(content) <= MAX_FILE_BYTES and (chunk := os.read(descriptor, CHUNK_BYTES)):
            content += chunk
        return File(content[:MAX_FILE_BYTES], about.st_mode & PERMISSIONS)
    finally:
        os.close(descriptor)


def state_is_absent(root: int, parts: tuple[str, ...]) -> bool:
    """Whether nothing stands at the path because a folder or the file itself is missing."""
    for count in range(1, len(parts) + 1):
        with opened_folder(root, parts[: count - 1]) as folder:
            if kind_of(folder, parts[count - 1]) is None:
                return True
    return False


def refuse_if_half_rolled_back(workspace: Workspace) -> None:
    """A change in the middle of a rollback would be mixed up with it."""
    if (record := records.half_rolled_back(workspace)) is not None:
        raise WorkspaceAway(
            f"the rollback {record.key} to {record.target} was begun and not finished: "
            f"`celeriac workspaces rollback {record.run_id} --to {record.target}` finishes it"
        )


def move_in(folder: int, temporary: str | None, name: str) -> None:
    """Let the temporary file take its place; None takes away what is there."""
    if temporary is None:
        os.unlink(name, dir_fd=folder)
    else:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def temporary_name(key: str, token: str) -> str:
    """A name that no other attempt has, short enough beside the longest file name."""
    return f"{TEMPORARY_PREFIX}{records.short(key)}-{token}"


def _change(
    shadow: ShadowRepository, parts: tuple[str, ...], before: File | None, planned: Plan
) -> Change:
    old = ABSENT if before is None else before.state
    new = ABSENT
    if planned.content is not None:
        if len(planned.content) > MAX_FILE_BYTES:
            raise ToolError(
                f"the file would have {len(planned.content)} bytes; {MAX_FILE_BYTES} are allowed"
            )
        permissions = NEW_FILE_PERMISSIONS if before is None else before.permissions
        new = State.of_file(planned.content, permissions)
    blob = None
    if before is not None and snapshots.is_kept(shadow, parts, len(before.content)):
        blob = shadow.keep(before.content)  # as it was read, in case somebody edits it meanwhile
    return Change("/".join(parts), old, new, blob)


def _put(
    workspace: Workspace,
    root: int,
    record: Record,
    parts: tuple[str, ...],
    content: bytes | None,
    give_up_at: float,
    step: int,
) -> Record:
    (change,) = record.changes
    earlier = _removed_temporary(workspace, root, record.key)
    temporary = temporary_name(record.key, record.token)
    try:
        if content is not None:
            made = [*earlier.made_folders] if earlier is not None else []
            made += make_folders(root, parts[:-1])
            path = "/".join((*parts[:-1], temporary))
            record = replace(record, temporary=path, made_folders=made)
        with opened_folder(root, parts[:-1]) as folder:
            if content is not None:
                write_temporary(folder, temporary, File(content, change.after.permissions))
            try:
                records.write(workspace, record)
                reach("workspace.before_rename", step)
                _check_unchanged(root, parts, change)
                if time.monotonic() > give_up_at:
                    raise ToolError("the change was given up: its time was over before it was made")
                # A later attempt takes the temporary away: then this one changes nothing any more.
                move_in(folder, None if content is None else temporary, parts[-1])
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            reach("workspace.after_rename", step)
            in_place = os.dup(folder)
    except OSError as error:
        raise ToolError(f"{change.path!r} cannot be changed: {error.strerror}") from error
    try:
        os.fsync(in_place)  # what goes wrong here leaves the outcome open
    finally:
        os.close(in_place)
    return record


def _check_unchanged(root: int, parts: tuple[str, ...], change: Change) -> None:
    """The last look before the change. A person who saves the file within the microseconds that
    are left is overwritten; the snapshot may have what they wrote, or not."""
    if state_of(root, parts) != change.before:
        raise ToolError(f"{change.path!r} was changed by somebody else meanwhile; read it again")


def _removed_temporary(workspace: Workspace, root: int, key: str) -> Record | None:
    """The record of an earlier attempt, whose new content is taken away."""
    earlier = records.find(workspace, key)
    if earlier is None or not earlier.temporary:
        return earlier
    parts = tuple(earlier.temporary.split("/"))
    with suppress(ToolError, FileNotFoundError), opened_folder(root, parts[:-1]) as folder:
        os.unlink(parts[-1], dir_fd=folder)
    return earlier


def write_temporary(folder: int, name: str, file: File) -> None:
    """Write a new file whole and to the disk; on an error it is taken away again."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        view = memoryview(file.content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, file.permissions)
        os.fsync(descriptor)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise
    finally:
        os.close(descriptor)


def _refuse_twin(root: int, parts: tuple[str, ...]) -> None:
    """Two names that differ in case only are one file on other machines."""
    for count in range(1, len(parts) + 1):
        with opened_folder(root, parts[: count - 1]) as folder:
            if kind_of(folder, parts[count - 1]) is not None:
                continue
            wanted = parts[count - 1].casefold()
            twins = [name for name in names_in(folder) if name.casefold() == wanted]
        if twins:
            twin = "/".join((*parts[: count - 1], twins[0]))
            raise ToolError(
                f"there is {twin!r} already, which differs from {'/'.join(parts)!r} in upper and "
                "lower case only; use that name, or quite another"
            )
        return
