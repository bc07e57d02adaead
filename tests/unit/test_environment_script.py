"""`script/environment` on a project without dependencies: what it does when, not what uv does."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = shutil.which("uv") or str(ROOT / "build/uv/bin/uv")

PROJECT = """\
[project]
name = "tiny"
version = "0"
requires-python = ">=3.11"

[dependency-groups]
dev = []
"""
LOCK = """\
version = 1
requires-python = ">=3.11"

[[package]]
name = "tiny"
version = "0"
source = { virtual = "." }
"""
NO_NETWORK = {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}

pytestmark = pytest.mark.skipif(
    not Path(UV).exists() and os.environ.get("CI") != "true",
    reason="there is no uv; script/environment brings one",
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project with the script, under a path with a space."""
    folder = tmp_path / "a checkout"
    (folder / "script").mkdir(parents=True)
    shutil.copy(ROOT / "script/environment", folder / "script")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "uv.lock").write_text(LOCK)
    bring_uv(folder, f'exec "{UV}" "$@"\n')
    return folder


def bring_uv(checkout: Path, script: str) -> None:
    """Let this script be the uv that is found in the checkout."""
    program = checkout / "build/uv/bin/uv"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{script}')
    program.chmod(0o755)


def bare_path(folder: Path, python3: str) -> str:
    """A PATH with nothing but what every system has, and this script as python3."""
    folder.mkdir()
    for name in "bash", "cat", "cksum", "dirname", "grep", "id", "mkdir", "mv", "rm", "sh", "touch":
        (folder / name).symlink_to(str(shutil.which(name)))
    (folder / "python3").write_text(f"#!/bin/sh\n{python3}\n")
    (folder / "python3").chmod(0o755)
    return str(folder)


def start(checkout: Path, *options: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [checkout / "script/environment", *options],
        env={**os.environ, **NO_NETWORK, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that a test can end all of it
    )


def make(checkout: Path, *options: str, **environment: str) -> str:
    """Run the script to its end; what it said. Fails if it failed."""
    process = start(checkout, *options, **environment)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def refuse(checkout: Path, **environment: str) -> str:
    process = start(checkout, **environment)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    return said


def test_it_makes_an_environment_and_then_does_nothing(checkout: Path) -> None:
    first = make(checkout)
    bring_uv(checkout, "exit 70\n")  # whoever calls it now fails

    second = make(checkout)

    assert "environment: ready" in first
    assert second == ""
    assert subprocess.run([checkout / ".venv/bin/python", "-c", ""], check=False).returncode == 0


@pytest.mark.parametrize("file", ["uv.lock", "pyproject.toml"])
def test_it_notices_a_changed_file(checkout: Path, file: str) -> None:
    make(checkout)
    path = checkout / file
    path.write_text(path.read_text() + "\n# changed\n")

    assert "environment: ready" in make(checkout)


def test_the_tests_environment_serves_the_demo_and_not_the_other_way(checkout: Path) -> None:
    make(checkout, "--runtime")

    extended = make(checkout)
    again = make(checkout, "--runtime")

    assert "environment: ready" in extended
    assert again == ""


def test_the_demo_never_takes_the_tools_for_the_tests_away(checkout: Path) -> None:
    make(checkout)
    lock = checkout / "uv.lock"
    lock.write_text(lock.read_text() + "\n# changed\n")

    make(checkout, "--runtime")

    assert (checkout / ".venv/made-from").read_text().splitlines()[0] == "all"


def test_a_half_made_environment_is_made_anew(checkout: Path) -> None:
    killed = 'mkdir -p .venv/bin && touch .venv/half && kill -9 "$PPID"\n'
    bring_uv(checkout, killed)
    # The script's subshell is uv's parent: SIGKILL ends that, and the script fails as it would.
    refuse(checkout)
    assert (checkout / ".venv/half").exists()
    bring_uv(checkout, f'exec "{UV}" "$@"\n')

    make(checkout)

    assert not (checkout / ".venv/half").exists()
    assert (checkout / ".venv/bin/python").exists()


def test_a_checkout_that_was_moved_gets_a_new_environment(checkout: Path) -> None:
    make(checkout)
    (checkout / ".venv/old").touch()
    moved = checkout.rename(checkout.with_name("elsewhere"))

    make(moved)

    assert not (moved / ".venv/old").exists()


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Path) -> None:
    make(checkout)
    python = checkout / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python3")

    make(checkout)

    assert python.exists()


def test_of_two_at_once_one_waits_and_has_nothing_to_do(checkout: Path) -> None:
    # The fifo holds the first one up inside uv until the second one has said that it waits.
    os.mkfifo(checkout / "gate")
    bring_uv(checkout, f'echo x >>calls; cat gate >/dev/null; exec "{UV}" "$@"\n')
    with (
        start(checkout) as first,
        (checkout / "gate").open("w") as gate,  # opens when uv reads
        start(checkout) as second,
    ):
        assert second.stderr is not None
        waits = second.stderr.readline()
        gate.close()

    assert "waiting" in waits
    assert (first.returncode, second.returncode) == (0, 0)
    assert (checkout / "calls").read_text() == "x\n"


def test_ctrl_c_ends_it_and_the_next_one_finishes(checkout: Path) -> None:
    os.mkfifo(checkout / "gate")
    bring_uv(checkout, "cat gate\n")
    with start(checkout) as process, (checkout / "gate").open("w"):
        os.killpg(process.pid, signal.SIGINT)
    bring_uv(checkout, f'exec "{UV}" "$@"\n')

    assert "environment: ready" in make(checkout)


def test_it_is_made_with_no_python_from_inside_it(checkout: Path) -> None:
    make(checkout)
    (checkout / "build/environment.unfinished").touch()
    (checkout / ".venv/made-from").unlink()

    said = make(checkout, PATH=f"{checkout}/.venv/bin:{os.environ['PATH']}")

    assert "environment: ready" in said


def test_without_python_it_says_what_was_found(checkout: Path, tmp_path: Path) -> None:
    path = bare_path(tmp_path / "bin", python3="echo 3.9; exit 1")

    said = refuse(checkout, PATH=path)

    assert "Python 3.11 or later is needed" in said
    assert "python3 is 3.9" in said


def test_without_pip_it_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
    shutil.rmtree(checkout / "build")
    no_pip = f'case "$*" in *pip*) exit 1;; *) exec "{sys.executable}" "$@";; esac'
    path = bare_path(tmp_path / "bin", python3=no_pip)

    said = refuse(checkout, PATH=path)

    assert "neither pip nor ensurepip" in said
    assert not (checkout / ".venv").exists()


def test_an_unknown_option_is_refused(checkout: Path) -> None:
    process = start(checkout, "--all")
    _, said = process.communicate(timeout=60)

    assert process.returncode == 1
    assert "unknown option --all" in said
