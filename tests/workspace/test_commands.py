"""Commands are bounded, see no secrets, and leave nothing running, whoever dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from celeriac.errors import ToolError
from celeriac.recovery import Done, NotDone, Unclear
from celeriac.workspace import commands, records
from tests.waiting import eventually
from tests.workspaces import Files

LEAVES_PROCESSES = """\
sleep 300 &
setsid sleep 300 &
(setsid sh -c 'trap "" TERM HUP; sleep 300; sleep 300' > /dev/null 2>&1 &)
"""


def in_folder(folder: Path) -> list[int]:
    """The processes that work in a folder."""
    return [
        process.pid
        for process in psutil.process_iter(["cwd"])
        if (cwd := process.info["cwd"]) and Path(cwd).is_relative_to(folder)
    ]


def sh(files: Files, script: str) -> dict[str, object]:
    return files.call("run_command", command=["sh", "-c", script])


def test_a_command_tells_code_output_and_what_it_changed(files: Files) -> None:
    files.write("old.txt", "old")

    told = sh(files, "echo out; echo err >&2; rm old.txt; mkdir d; echo new > d/new.txt; exit 3")

    assert (told["exit_code"], told["timed_out"], told["output"]) == (3, False, "out\nerr\n")
    assert told["changed"] == ["d/new.txt", "old.txt"]


def test_a_command_runs_in_a_folder_inside_and_in_no_other(files: Files, outside: Path) -> None:
    (files.folder / "inner").mkdir()
    (files.folder / "link").symlink_to(outside.parent)

    told = files.call("run_command", command=["pwd", "-P"], folder="inner")
    assert told["output"] == f"{(files.folder / 'inner').resolve()}\n"
    for folder in ("..", "link", "/", "missing"):
        with pytest.raises(ToolError):
            files.call("run_command", command=["touch", "here"], folder=folder)
    assert not (outside.parent / "here").exists()


def test_there_is_no_shell_between(files: Files) -> None:
    told = files.call("run_command", command=["echo", "$HOME; touch x", "*"])

    assert told["output"] == "$HOME; touch x *\n"
    assert files.contents() == {}


def test_a_command_sees_no_secret_of_the_worker(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELERIAC_DATABASE_URL", "postgresql://u:a-password-of-ours@h/d")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-ours")
    monkeypatch.setenv("GIT_DIR", "/somewhere")

    told = sh(files, "env")

    names = {line.partition("=")[0] for line in str(told["output"]).splitlines()}
    assert names <= {*commands.PASSED_ON, "HOME", "CI", "PWD", "OLDPWD", "SHLVL", "_"}
    assert f"HOME={files.workspace.kept / 'home'}" in str(told["output"])


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found on Linux only")
def test_what_a_command_leaves_running_is_killed_with_it(files: Files) -> None:
    told = sh(files, LEAVES_PROCESSES)

    assert told["exit_code"] == 0
    assert in_folder(files.folder) == []


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found on Linux only")
def test_at_the_end_of_its_time_all_that_it_started_is_killed(tmp_path: Path, files: Files) -> None:
    hasty = Files(files.folder, command_seconds=0.5)

    told = sh(hasty, f"{LEAVES_PROCESSES} echo begun; trap '' TERM; sleep 300")

    assert (told["exit_code"], told["timed_out"], told["output"]) == (None, True, "begun\n")
    assert "killed after 0.5 s" in str(told["note"])
    assert in_folder(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found on Linux only")
def test_a_command_ends_with_the_worker_that_is_killed(tmp_path: Path, files: Files) -> None:
    """And so does the lock of the workspace, not before."""
    program = (
        "from pathlib import Path; import sys; from tests.workspaces import Files;"
        f"Files(Path(sys.argv[1])).call('run_command', command=['sh', '-c', {SLOW!r}])"
    )
    worker = subprocess.Popen([sys.executable, "-c", program, files.folder], start_new_session=True)
    eventually((files.folder / "begun").exists, until=bool, what="a command that was begun")

    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()

    with files.workspace.locked():
        assert in_folder(tmp_path) == []
    files.calls = 0
    assert isinstance(files.verify("run_command", 1), Unclear)


SLOW = f"{LEAVES_PROCESSES} touch begun; sleep 300"


def test_output_is_bounded_and_says_so(files: Files) -> None:
    told = sh(files, "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")

    output = str(told["output"])
    assert len(output) < commands.MAX_OUTPUT_BYTES + 100
    assert output.startswith("first\nxxx")
    assert output.endswith("xxx\nlast\n")
    assert "bytes left out …]" in output
    assert (told["is_truncated"], told["output_bytes"]) == (True, 3_000_012)


def test_output_of_any_bytes_is_told(files: Files) -> None:
    assert sh(files, "printf 'caf\\351\\000\\n'")["output"] == "caf\\xe9\0\n"


def test_a_program_that_is_not_there_is_a_definite_failure(files: Files) -> None:
    with pytest.raises(ToolError, match="no-such-program: No such file"):
        files.call("run_command", command=["no-such-program"])
    for command in ([], [""], ["a\0b"]):
        with pytest.raises(ToolError):
            files.call("run_command", command=command)
    files.write("a.txt", "the workspace is free again")


def test_verify_knows_a_command_that_has_ended_and_one_that_was_not_begun(files: Files) -> None:
    told = sh(files, "echo done")

    assert files.verify("run_command", 1) == Done(told)
    assert files.verify("run_command", 2) == NotDone()
    assert files.tools["run_command"].recovery.on_unknown == "ask"
    assert files.tools["run_tests"].recovery.on_unknown == "resend"


def test_a_command_that_kills_its_guard_has_an_unknown_outcome(files: Files) -> None:
    with pytest.raises(RuntimeError, match="unknown"):
        sh(files, "kill -9 $PPID; sleep 0.2")
    record = records.find(files.workspace, files.context("x", 1).idempotency_key)
    assert record is not None
    assert not record.is_done
