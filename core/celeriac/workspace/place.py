"""Where a run's workspace is, and where what is kept about it.

By default each thread has a folder of its own below the workspaces folder (`CELERIAC_WORKSPACES`):
a thread is one continuing conversation, whose next run goes on with the files of the last one, and
its runs go one at a time. An agent that works on a folder that is there already names it, in code
or by a field of the run's input; then it must lie inside one of `CELERIAC_WORKSPACE_ROOTS`.

    WORKSPACES/.celeriac-workspaces     says that this is the folder, and not an empty mount point
    WORKSPACES/threads/ID-HASH/files/   a thread's workspace
    WORKSPACES/threads/ID-HASH/kept/    its records and snapshots, outside of it
    WORKSPACES/folders/HASH/kept/       those of a folder that lies elsewhere
    WORKSPACES/runs/HASH.json           in which workspace a run works: settled by its first call
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from celeriac.codec import JsonValue
from celeriac.context import ToolContext
from celeriac.errors import InvalidAgent, ToolError, WorkspaceAway
from celeriac.workspace.confinement import opened_root

if TYPE_CHECKING:
    from celeriac.settings import Settings

MARKER = ".celeriac-workspaces"
LOCK_SECONDS = 10.0  # how long a change waits for another one in the same workspace
LOCK_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder of files, and the folder where its records and snapshots are kept."""

    files: Path
    kept: Path

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor of the folder of files."""
        try:
            with opened_root(self.files) as root:
                yield root
        except (FileNotFoundError, NotADirectoryError) as error:
            raise WorkspaceAway(
                f"the workspace {self.files} is not there; was it moved, or is it on another host?"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Nobody else changes this workspace or its records meanwhile. The descriptor may be given
        to a child process: then the lock lasts until that has ended, too.

        Raises `WorkspaceAway` if it is still locked after `LOCK_SECONDS`.
        """
        self.kept.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds what files hold
        descriptor = os.open(self.kept / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            give_up_at = time.monotonic() + LOCK_SECONDS
            while not _locks(descriptor):
                if time.monotonic() > give_up_at:
                    raise WorkspaceAway(
                        f"another call has been changing the workspace {self.files} for "
                        f"{LOCK_SECONDS:g} s; nothing was changed. Try again later"
                    )
                time.sleep(LOCK_POLL_SECONDS)
            yield descriptor
        finally:
            os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Place:
    """How an agent's runs find their workspace: `folder` in code, `folder_from` a field of the
    run's input, or else a folder of the thread's own."""

    def __init__(self, folder: Path | str | None = None, folder_from: str | None = None) -> None:
        if folder is not None and folder_from is not None:
            raise InvalidAgent("a workspace is either `folder` or `folder_from`, not both")
        self._folder: Final = folder
        self._folder_from: Final = folder_from

    def workspace(self, context: ToolContext) -> Workspace:
        """The workspace of the run that `context` belongs to.

        Raises `WorkspaceAway` if it, or the folder of workspaces, is not on this machine, and
        `ToolError` if the run's input names a folder that it may not.
        """
        top = workspaces_folder()
        if self._folder is not None:
            return _kept_elsewhere(top, _existing(str(self._folder)))
        if self._folder_from is not None:
            return _kept_elsewhere(top, _allowed(_field(context.input, self._folder_from)))
        found = of_run(context.tenant_id, context.run_id)
        if found is not None:
            return found
        name = f"{context.thread_id}-{_hash(context.tenant_id, context.thread_id)[:16]}"
        workspace = Workspace(top / "threads" / name / "files", top / "threads" / name / "kept")
        workspace.files.mkdir(parents=True, exist_ok=True)
        return workspace


def of_run(tenant_id: str, run_id: str, top: Path | None = None) -> Workspace | None:
    """The workspace that a run has changed something in; None if it has not. `top` is the folder of
    workspaces, if it is not this process's own."""
    try:
        text = _note_of_run(top or workspaces_folder(), tenant_id, run_id).read_text()
    except FileNotFoundError:
        return None
    noted = json.loads(text)
    return Workspace(Path(noted["files"]), Path(noted["kept"]))


def note_run(tenant_id: str, run_id: str, workspace: Workspace) -> None:
    """Keep in mind where the run works, for those who know only the run."""
    note = _note_of_run(workspaces_folder(), tenant_id, run_id)
    if not note.exists():
        paths = {"files": str(workspace.files), "kept": str(workspace.kept)}
        write_whole(note, json.dumps(paths).encode())


def _note_of_run(top: Path, tenant_id: str, run_id: str) -> Path:
    return top / "runs" / f"{_hash(tenant_id, run_id)}.json"


def workspaces_folder() -> Path:
    """The folder that holds all workspaces, or what is kept about them.

    Without `CELERIAC_WORKSPACES` it is inside the data folder of `celeriac up`, and made there.
    Raises `WorkspaceAway` if it is not there, or is a folder that nobody has prepared: an empty
    mount point must not become a second, empty workspace.
    """
    from celeriac.settings import settings  # pydantic-settings, for workers only

    folder = workspaces_path(settings())
    if (folder / MARKER).exists():
        return folder
    if settings().workspaces or not folder.parent.is_dir():
        raise WorkspaceAway(
            f"this worker has no folder of workspaces at {folder} (there is no {MARKER} in it). "
            "Mount it here, or set CELERIAC_WORKSPACES; `celeriac workspaces prepare` makes a new "
            "one. All workers must share it"
        )
    prepare(folder)
    return folder


def workspaces_path(settings: "Settings") -> Path:
    """Where that folder is to be, whether it is there or not."""
    return Path(settings.workspaces or Path(settings.data) / "workspaces").absolute()


def prepare(folder: Path) -> None:
    """Make a folder one of workspaces; what is in it stays."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch(mode=0o600)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there completely or not at all, also after a loss of power."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}.new")
    with temporary.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    with opened_root(path.parent) as folder:
        os.fsync(folder)


def _kept_elsewhere(top: Path, files: Path) -> Workspace:
    if files == top or files in top.parents or top in files.parents:
        raise ToolError(
            f"the workspace {files} and the folder of workspaces {top} must lie apart, since what "
            "is kept about a workspace must not be part of it"
        )
    return Workspace(files, top / "folders" / _hash(str(files)) / "kept")


def _existing(folder: str) -> Path:
    path = Path(folder)
    if not path.is_absolute():
        raise ToolError(f"the workspace {folder!r} is not an absolute path")
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise WorkspaceAway(f"the workspace {folder} is not on this worker: {error}") from error


def _allowed(folder: str) -> Path:
    from celeriac.settings import settings

    path = _existing(folder)
    roots = settings().workspace_root_folders
    if not any(path.is_relative_to(Path(root).resolve()) for root in roots):
        raise ToolError(
            f"the workspace {folder} lies in none of the folders that runs may work in "
            f"({', '.join(roots) or 'none'}); CELERIAC_WORKSPACE_ROOTS lists them"
        )
    return path


def _field(given: JsonValue, name: str) -> str:
    value = given.get(name) if isinstance(given, dict) else None
    if not isinstance(value, str):
        raise ToolError(f"the run's input has no text {name!r} that names its workspace")
    return value


def _hash(*parts: str) -> str:
    return hashlib.sha256(":".join(parts).encode()).hexdigest()
