"""A git repository that nobody sees: its data beside the records, its work tree the workspace.

Only git's plumbing is used, with a configuration of its own: no hook, signature, filter, attribute
or line-end rule of the user's or the machine's applies, so content is kept byte for byte. The
user's own `.git` is never opened, and the workspace need not have one.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from celeriac.errors import WorkspaceAway
from celeriac.workspace.place import Workspace

OLDEST_GIT = (2, 31)
BATCH_OBJECTS = 50  # read at once; each has 5 MB at most
GIT_SECONDS = 120.0  # one git command; the first snapshot of a large folder takes longest
_OBJECT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SETTINGS = {
    "core.bare": "false",
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.symlinks": "true",
    "core.fileMode": "true",
    "core.fsmonitor": "false",
    # Names that another system could not have are kept all the same.
    "core.protectHFS": "false",
    "core.protectNTFS": "false",
    "core.fsync": "objects,reference",
    "core.fsyncMethod": "batch",
    "commit.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "advice.addEmbeddedRepo": "false",
}
# In $GIT_DIR/info/attributes, which goes before every .gitattributes (gitattributes(5)).
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding\n"
AUTHOR = {"NAME": "Celeriac", "EMAIL": "celeriac@localhost"}


class ShadowRepository:
    """The repository of one workspace, for whoever holds its lock (`lock` is the descriptor).

    Each git process inherits the lock: if this process is killed, nobody else begins before its
    git has ended too.
    """

    def __init__(self, workspace: Workspace, lock: int) -> None:
        self._workspace: Final = workspace
        self._lock: Final = lock
        self._folder: Final = workspace.kept / "snapshots.git"
        if not (self._folder / "info" / "attributes").exists():
            self._create()
        for stale in ("index.lock", "HEAD.lock", "refs/heads/snapshots.lock"):
            (self._folder / stale).unlink(missing_ok=True)  # its owner has ended: we hold the lock

    def _create(self) -> None:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--template=", "--initial-branch=snapshots", in_folder=False)
        (self._folder / "info").mkdir(exist_ok=True)
        (self._folder / "info" / "attributes").write_text(_ATTRIBUTES)  # last: it says all is there

    def ignored(self, paths: Sequence[str]) -> set[str]:
        """Which of these paths the workspace's own ignore rules leave out.

        Ask for a folder before what is in it: below an ignored one all is ignored.
        """
        given = _lines(f"./{path}" for path in paths)  # ":name" would be a pattern
        said = self.git("check-ignore", "--no-index", "-z", "--stdin", given=given, allowed=(0, 1))
        return {path.removeprefix("./") for path in _split(said)}

    def indexed(self) -> set[str]:
        return set(_split(self.git("ls-files", "-z")))

    def index(self, paths: Sequence[str], gone: Iterable[str]) -> None:
        """Make the index hold exactly these files, as they are now. Unchanged ones are not read."""
        if dropped := _lines(gone):
            self.git("update-index", "-z", "--force-remove", "--stdin", given=dropped)
        adding = ("update-index", "-z", "--add", "--remove", "--replace", "--stdin")
        self.git(*adding, given=_lines(paths))

    def commit(self, message: str) -> str:
        """Commit the index; the hash of the commit."""
        tree = self.git("write-tree").strip().decode()
        known = self.git("rev-parse", "--verify", "--quiet", "refs/heads/snapshots", allowed=(0, 1))
        parent = known.strip().decode()
        parents = ["-p", parent] if parent else []
        commit = self.git("commit-tree", tree, *parents, given=message.encode()).strip().decode()
        self.git("update-ref", "refs/heads/snapshots", commit, parent or "0" * len(commit))
        return commit

    def keep(self, content: bytes) -> str:
        """Keep some content; the name to ask for it with."""
        said = self.git("hash-object", "-w", "--no-filters", "--stdin", given=content)
        return said.strip().decode()

    def content(self, blob: str) -> bytes:
        return self.git("cat-file", "blob", object_name(blob))

    def digests(self, blobs: Sequence[str]) -> dict[str, str]:
        """The sha256 of what is kept under each of these names."""
        found = {}
        for begin in range(0, len(blobs), BATCH_OBJECTS):
            batch = [object_name(blob) for blob in blobs[begin : begin + BATCH_OBJECTS]]
            said = self.git("cat-file", "--batch", given="".join(f"{b}\n" for b in batch).encode())
            position = 0
            for blob in batch:  # each is "NAME blob SIZE", a line end, the content, a line end
                content = said.index(b"\n", position) + 1
                size = int(said[position:content].split()[2])
                found[blob] = hashlib.sha256(said[content : content + size]).hexdigest()
                position = content + size + 1
        return found

    def files(self, commit: str) -> dict[str, tuple[int, str]]:
        """Mode and blob of each path in a snapshot. The modes are git's: 100644, 100755, 120000."""
        found = {}
        for line in _split(self.git("ls-tree", "-r", "-z", "--full-tree", object_name(commit))):
            about, _, path = line.partition("\t")
            mode, _, blob = about.split(" ")
            found[path] = (int(mode, 8), blob)
        return found

    def git(
        self,
        *arguments: str,
        given: bytes = b"",
        allowed: Sequence[int] = (0,),
        in_folder: bool = True,
    ) -> bytes:
        """What one git command wrote. Raises `WorkspaceAway` if it failed: nothing was changed in
        the workspace, which no command here writes to."""
        settings = [word for item in _SETTINGS.items() for word in ("-c", "=".join(item))]
        if (exclude := self._users_exclude()) is not None:
            settings += ["-c", f"core.excludesFile={exclude}"]
        try:
            ran = subprocess.run(  # noqa: S603 - a fixed program; paths go by standard input
                [git_program(), *settings, *arguments],
                input=given,
                capture_output=True,
                env=self._environment(),
                cwd=self._workspace.files if in_folder else self._workspace.kept,
                timeout=GIT_SECONDS,
                pass_fds=(self._lock,),
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise WorkspaceAway(f"git {arguments[0]} could not be run: {error}") from error
        if ran.returncode not in allowed:
            said = ran.stderr.decode(errors="backslashreplace").strip()
            raise WorkspaceAway(
                f"the workspace could not be kept, so nothing was changed: git {arguments[0]} "
                f"ended with {ran.returncode}: {said[-500:]}"
            )
        return ran.stdout

    def _environment(self) -> dict[str, str]:
        # Nothing of the worker's own: GIT_* variables would redirect every command.
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self._workspace.kept),
            "XDG_CONFIG_HOME": str(self._workspace.kept),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_DIR": str(self._folder),
            "GIT_WORK_TREE": str(self._workspace.files),
            "GIT_INDEX_FILE": str(self._folder / "index"),
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_REPLACE_OBJECTS": "1",
            **{f"GIT_AUTHOR_{name}": value for name, value in AUTHOR.items()},
            **{f"GIT_COMMITTER_{name}": value for name, value in AUTHOR.items()},
        }

    def _users_exclude(self) -> Path | None:
        """What the user ignores in this clone alone. It is only read, by name."""
        path = self._workspace.files / ".git" / "info" / "exclude"
        return path if path.is_file() and not path.is_symlink() else None


def object_name(name: str) -> str:
    """`name` if it can be nothing but the full hash of an object. git would take `--help`, `HEAD`
    or `main` as well, and do what they say."""
    if not _OBJECT.fullmatch(name):
        raise ValueError(f"{name!r} is not the full hash of an object")
    return name


@cache
def git_program() -> str:
    """The machine's git. Raises `WorkspaceAway` if there is none, or one that is too old."""
    program = shutil.which("git")
    if program is None:
        raise WorkspaceAway(
            "this worker has no git, which keeps the snapshots that are made before each change; "
            "install git on every worker that serves workspaces"
        )
    said = git_version(program)
    version = re.search(r"(\d+)\.(\d+)", said)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_GIT:
        wanted = ".".join(map(str, OLDEST_GIT))
        raise WorkspaceAway(f"this worker has {said}; git {wanted} is needed")
    return program


def git_version(program: str) -> str:
    """What a git says of itself: `git version 2.39.5`."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
    return said.stdout.strip()


def _lines(paths: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def _split(said: bytes) -> list[str]:
    return [os.fsdecode(each) for each in said.split(b"\0") if each]
