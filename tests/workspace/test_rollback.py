"""What an agent wrote is taken back, what a person wrote is kept, and neither git nor secrets are
touched."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from celeriac.errors import Conflict, InvalidInput, ToolError, WorkspaceAway
from celeriac.recovery import Done, NotDone
from celeriac.workspace import records, rollback, shadow, snapshots
from celeriac.workspace.records import Record
from tests.workspaces import Files, paths


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=User", "-c", "user.email=user@localhost")
    ran = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return ran.stdout.strip()


def everything_in(folder: Path) -> dict[str, tuple[int, str]]:
    """Mode and digest of each file below, the user's git data included."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in folder.rglob("*")
    }


def roll_back(files: Files, number: int = 1, **arguments: Any) -> dict[str, Any]:
    """To before the call with that number."""
    return rollback.roll_back(files.workspace, files.snapshot(number), **arguments)


def test_all_kinds_of_changes_are_taken_back(files: Files) -> None:
    (files.folder / "old.txt").write_text("old")
    (files.folder / "run.sh").write_text("#!/bin/sh")
    (files.folder / "run.sh").chmod(0o750)
    (files.folder / "link").symlink_to("old.txt")
    (files.folder / "crlf.txt").write_bytes(b"a\r\nb\r\n")
    (files.folder / "crlf-too.txt").write_bytes(b"a\r\n$Id$\r\n")
    (files.folder / ".gitattributes").write_text("* text=auto eol=lf\n*.txt filter=lfs ident\n")
    (files.folder / Path(os.fsdecode(b"caf\xe9"))).write_text("odd")
    before = everything_in(files.folder)
    files.write("a/new.txt", "new")
    files.write("old.txt", "changed")
    files.call("edit_file", path="old.txt", old="changed", new="again")
    files.write("crlf.txt", "x")
    files.call("delete_file", path="run.sh")
    files.call(
        "run_command",
        command=["sh", "-c", "rm link caf* crlf-too.txt; echo > made; chmod +x old.txt"],
    )

    report = roll_back(files)

    assert everything_in(files.folder) == before
    assert report["removed"] == ["a/new.txt", "made"]
    assert sorted(report["restored"])[1:] == [
        "crlf-too.txt",
        "crlf.txt",
        "link",
        "old.txt",
        "run.sh",
    ]
    assert (report["kept"], report["failed"], report["lost_commands"]) == ([], [], [])


def test_it_goes_back_to_any_call_and_forth_again(files: Files) -> None:
    for number in range(1, 5):
        files.write("a.txt", f"version {number}")

    roll_back(files, 3)
    assert files.contents() == {"a.txt": b"version 2"}
    second = roll_back(files, 2)
    assert files.contents() == {"a.txt": b"version 1"}
    rollback.roll_back(files.workspace, second["before"])  # what the second one has undone
    assert files.contents() == {"a.txt": b"version 2"}
    roll_back(files, 1)
    assert files.contents() == {}
    files.write("a.txt", "after it")
    roll_back(files, 5)
    assert files.contents() == {}


# features: 004-43
def test_what_a_person_wrote_since_is_kept_and_reported(files: Files) -> None:
    (files.folder / "between.txt").write_text("old")
    files.write("edited.txt", "the agent's")
    files.write("untouched.txt", "the agent's")
    files.write("deleted.txt", "the agent's")
    files.write("between.txt", "the agent's")
    (files.folder / "between.txt").write_text("a person's")
    files.call("edit_file", path="between.txt", old="person", new="person and agent")
    (files.folder / "edited.txt").write_text("a person's")
    (files.folder / "deleted.txt").unlink()
    (files.folder / "own.txt").write_text("a person's")

    report = roll_back(files)

    assert files.contents() == {
        "edited.txt": b"a person's",
        "between.txt": b"a person's",
        "own.txt": b"a person's",
    }
    assert report["removed"] == ["untouched.txt"]
    assert report["restored"] == ["between.txt"]
    assert paths(report["kept"]) == ["between.txt", "edited.txt"]


# features: 004-43, 004-44
def test_the_users_repository_stays_as_it_is(files: Files) -> None:
    """Commits, uncommitted edits, index, branch, hooks and configuration: byte for byte."""
    git(files.folder, "init", "-q", "-b", "main")
    (files.folder / "tracked.txt").write_text("committed")
    git(files.folder, "add", ".")
    git(files.folder, "commit", "-q", "-m", "of the user")
    hook = files.folder / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {files.folder}/the-hook-ran\n")
    hook.chmod(0o755)
    (files.folder / ".git/info/exclude").write_text("mine-alone.txt\n")
    files.write("agent.txt", "the agent's")
    files.write("tracked.txt", "the agent's")
    (files.folder / "users.txt").write_text("of the user")
    (files.folder / "mine-alone.txt").write_text("private")
    git(files.folder, "add", "users.txt")
    git(files.folder, "commit", "-q", "-m", "a second one")
    (files.folder / "users.txt").write_text("not committed")
    before, head = everything_in(files.folder / ".git"), git(files.folder, "rev-parse", "HEAD")

    files.write("agent.txt", "more")
    roll_back(files)

    assert everything_in(files.folder / ".git") == before
    assert git(files.folder, "rev-parse", "HEAD", "main") == f"{head}\n{head}"
    assert git(files.folder, "log", "--format=%s") == "a second one\nof the user"
    assert files.contents() == {
        "tracked.txt": b"committed",
        "users.txt": b"not committed",
        "mine-alone.txt": b"private",
    }
    assert "mine-alone.txt" not in kept_paths(files)


def kept_paths(files: Files) -> set[str]:
    """Every path in any snapshot."""
    repository = files.workspace.kept / "snapshots.git"
    commits = git(repository, "log", "--format=%H", "snapshots").split()
    return {
        path
        for commit in commits
        for path in git(repository, "ls-tree", "-r", "--name-only", commit).splitlines()
    }


# features: 004-44
def test_neither_secrets_nor_ignored_files_are_kept(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_KEPT_BYTES", 1000)
    (files.folder / ".gitignore").write_text("build/\n*.log\n!kept.log\n")
    for name in ("build/deep", "src", ".ssh"):
        (files.folder / name).mkdir(parents=True)
    (files.folder / "src/.gitignore").write_text("generated.py\n")
    for path in (
        "build/deep/x.o", "a.log", "kept.log", "src/a.py", "src/generated.py", ".env", "prod.env",
        "secret.env", "id_ed25519", "tls.key", ".ssh/config", ".env.example",
    ):  # fmt: skip
        (files.folder / path).write_text("needle-7c1f")
    (files.folder / "large.txt").write_text("needle-7c1f" * 100)
    os.mkfifo(files.folder / "pipe")
    (files.folder / "linked").hardlink_to(files.folder / "build/deep/x.o")

    files.write("new.txt", "x")
    files.write("a.log", "ignored: kept neither before nor after")

    kept = {".env.example", ".gitignore", "kept.log", "src/.gitignore", "src/a.py"}
    assert kept_paths(files) == kept | {"new.txt"}
    report = roll_back(files)
    assert files.contents()["a.log"] == b"ignored: kept neither before nor after"
    assert [each["path"] for each in report["kept"]] == ["a.log"]
    assert "not kept" in report["kept"][0]["why"]


def test_a_file_that_git_ignores_is_removed_if_the_agent_made_it(files: Files) -> None:
    (files.folder / ".gitignore").write_text("*.log\n")
    files.write("made.log", "x")

    assert roll_back(files)["removed"] == ["made.log"]


def test_files_in_a_repository_inside_are_kept_too(files: Files) -> None:
    inner = files.folder / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "a.txt").write_text("old")
    before = everything_in(inner)
    files.write("inner/a.txt", "new")
    files.write("inner/b.txt", "new")

    roll_back(files)

    assert everything_in(inner) == before


@pytest.mark.parametrize(
    "target",
    ["HEAD", "--quiet", "--help", "main", "snapshots", "", "0" * 40, "0" * 39, "abc", "HEAD~1",
     "0" * 40 + "\n", "{before}^", "{before}~1", "{short}", "{tree}", "{before}\n"],
)  # fmt: skip
def test_only_a_snapshot_of_this_workspace_is_a_target(files: Files, target: str) -> None:
    files.write("a.txt", "one")
    files.write("a.txt", "two")
    before = files.snapshot(2)
    repository = files.workspace.kept / "snapshots.git"
    tree = git(repository, "rev-parse", f"{before}^{{tree}}")
    target = target.format(before=before, short=before[:12], tree=tree)

    with pytest.raises(InvalidInput):
        rollback.roll_back(files.workspace, target)

    assert files.contents() == {"a.txt": b"two"}


def test_the_snapshot_of_another_workspace_is_no_target(files: Files, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/b.txt").write_text("so that its snapshots differ")
    other = Files(tmp_path / "other")
    other.write("a.txt", "x")
    files.write("a.txt", "x")

    with pytest.raises(InvalidInput, match="no snapshot of the workspace"):
        rollback.roll_back(files.workspace, other.snapshot(1))


@pytest.mark.parametrize("point", ["workspace.rollback_planned", "workspace.rollback_applied"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_rollback_that_was_killed_is_finished(
    files: Files, monkeypatch: pytest.MonkeyPatch, point: str, times: int
) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (files.folder / name).write_text("before")
        files.write(name, "after")

    class Killed(BaseException):
        pass

    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    for _ in range(times):
        monkeypatch.setattr(rollback, "reach", die)
        with pytest.raises(Killed):
            roll_back(files)
        monkeypatch.setattr(rollback, "reach", lambda _: None)
        with pytest.raises(WorkspaceAway, match="not finished"):
            files.write("d.txt", "in between")
        with pytest.raises(Conflict, match="half done"):
            roll_back(files, 2, key="another")
    (files.folder / "c.txt").write_text("a person's, in between")
    report = roll_back(files)

    assert files.contents() == {
        "a.txt": b"before",
        "b.txt": b"before",
        "c.txt": b"a person's, in between",
    }
    assert report["restored"] == ["a.txt", "b.txt"]
    assert paths(report["kept"]) == ["c.txt"]
    files.write("d.txt", "afterwards")


def test_the_same_rollback_is_answered_with_its_report(files: Files) -> None:
    files.write("a.txt", "one")
    report = roll_back(files, key="K")
    files.write("a.txt", "two")

    assert roll_back(files, key="K") == report
    assert files.contents() == {"a.txt": b"two"}
    assert rollback.find_rollback(files.workspace, "K") == Done(report)


def test_one_call_alone_is_undone(files: Files) -> None:
    (files.folder / "b.txt").write_text("before")
    files.write("a.txt", "one")
    files.write("b.txt", "two")
    key = files.context("x", 2).idempotency_key

    report = rollback.undo_call(files.workspace, key, key=f"undo:{key}")

    assert files.contents() == {"a.txt": b"one", "b.txt": b"before"}
    assert rollback.undo_call(files.workspace, key, key=f"undo:{key}") == report
    (files.folder / "a.txt").write_text("a person's")
    key = files.context("x", 1).idempotency_key
    with pytest.raises(ToolError, match="nothing could be taken back"):
        rollback.undo_call(files.workspace, key, key=f"undo:{key}")
    assert rollback.find_rollback(files.workspace, f"undo:{key}") == NotDone()
    (files.folder / "a.txt").write_text("one")  # now it is what the agent wrote
    assert rollback.undo_call(files.workspace, key, key=f"undo:{key}")["removed"] == ["a.txt"]
    with pytest.raises(ToolError, match="no record"):
        rollback.undo_call(files.workspace, "unknown", key="undo:unknown")


def test_what_a_lost_command_changed_is_not_guessed(files: Files) -> None:
    with pytest.raises(RuntimeError):
        files.call("run_command", command=["sh", "-c", "echo > made; kill -9 $PPID; sleep 0.2"])

    report = roll_back(files)

    assert report["lost_commands"] == [files.context("x", 1).idempotency_key]
    assert set(files.contents()) == {"made"}


def test_the_undo_of_a_lost_command_is_refused(files: Files) -> None:
    with pytest.raises(RuntimeError):
        files.call("run_command", command=["sh", "-c", "echo > made; kill -9 $PPID; sleep 0.2"])

    with pytest.raises(ToolError, match="nobody saw the end"):
        rollback.undo_call(files.workspace, files.context("x", 1).idempotency_key, key="undo")

    assert rollback.find_rollback(files.workspace, "undo") == NotDone()


def test_an_undo_of_a_part_says_so_and_one_that_failed_is_made_again(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (files.folder / name).write_text("before")
    files.call("run_command", command=["sh", "-c", "echo 1 > a; echo 1 > b; echo 1 > c"])
    (files.folder / "b").write_text("a person's")
    key = files.context("x", 1).idempotency_key
    with monkeypatch.context() as patch:
        patch.setattr(shadow.ShadowRepository, "content", lambda *_: b"something else")
        with pytest.raises(ToolError, match="not all could be taken back"):
            rollback.undo_call(files.workspace, key, key="undo")  # only c was removed
    assert rollback.find_rollback(files.workspace, "undo") == NotDone()

    report = rollback.undo_call(files.workspace, key, key="undo")

    assert (report["restored"], report["is_partial"]) == (["a"], True)
    assert files.contents() == {"a": b"before", "b": b"a person's"}
    assert rollback.find_rollback(files.workspace, "undo") == Done(report)


def test_damaged_content_is_not_put_back(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    (files.folder / "a.txt").write_text("before")
    files.write("a.txt", "after")
    monkeypatch.setattr(shadow.ShadowRepository, "content", lambda *_: b"something else")

    report = roll_back(files)

    assert paths(report["failed"]) == ["a.txt"]
    assert files.contents() == {"a.txt": b"after"}
    assert [path.name for path in files.folder.iterdir()] == ["a.txt"]


def test_the_records_say_what_agents_last_wrote(files: Files) -> None:
    files.write("a.txt", "one")
    files.write("a.txt", "two")
    files.write("b.txt", "three")
    files.call("delete_file", path="b.txt")

    last = {
        change.path: change.after
        for record in records.all_records(files.workspace)
        for change in record.changes
    }
    assert last["a.txt"].sha256 == hashlib.sha256(b"two").hexdigest()
    assert last["b.txt"].kind == "absent"


def test_a_git_that_was_killed_leaves_no_lock_behind(files: Files) -> None:
    files.write("a.txt", "one")
    repository = files.workspace.kept / "snapshots.git"
    (repository / "index.lock").touch()
    (repository / "refs/heads/snapshots.lock").touch()

    files.write("a.txt", "two")

    git(repository, "fsck", "--strict")


def test_snapshots_are_marked_as_not_the_users(files: Files, tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text("[user]\nname = Somebody\n[commit]\ngpgSign = true\n")
    files.write("a.txt", "one")

    said = git(files.workspace.kept / "snapshots.git", "log", "--format=%an <%ae>|%cn|%s")

    assert re.fullmatch(r"Celeriac <celeriac@localhost>\|Celeriac\|write_file \S+", said)


def test_a_worker_without_git_says_so(
    files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    shadow.git_program.cache_clear()
    try:
        with pytest.raises(WorkspaceAway, match="has no git"):
            files.write("a.txt", "x")
        (tmp_path / "git").write_text("#!/bin/sh\necho git version 2.20.1\n")
        (tmp_path / "git").chmod(0o755)
        with pytest.raises(WorkspaceAway, match=r"git version 2.20.1; git 2.31 is needed"):
            files.write("a.txt", "x")
    finally:
        shadow.git_program.cache_clear()
    assert files.contents() == {}


def test_records_of_odd_names_read_back(files: Files) -> None:
    assert shutil.which("git")
    files.call("run_command", command=["sh", "-c", "printf x > $(printf 'caf\\351')"])

    (record,) = records.all_records(files.workspace)

    assert isinstance(record, Record)
    assert [os.fsencode(change.path) for change in record.changes] == [b"caf\xe9"]
