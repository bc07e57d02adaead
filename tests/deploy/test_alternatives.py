"""The systemd units and the Procfile start what the compose file starts, and systemd takes them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from celeriac.settings import Settings
from tests.deploy.compose import ROOT, Service, program, services, variables_of

UNITS = sorted((ROOT / "deploy/systemd").iterdir())
MOST_EXPOSURE = "20"  # of 100, as `systemd-analyze security` counts; 17 when this was written


@pytest.fixture
def file() -> dict[str, Service]:
    return services(variables_of(ROOT / "deploy" / "dev.env"))


def setting(unit: Path, name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)
    return str(value)


def on_loopback(command: list[str]) -> list[str]:
    """A container has an address of its own, and a host has neighbours."""
    return [{"0.0.0.0": "127.0.0.1"}.get(part, part) for part in command]  # noqa: S104


def test_there_is_a_unit_for_each_service_but_flower() -> None:
    assert [unit.name for unit in UNITS] == [
        "celeriac-api.service",
        "celeriac-scheduler.service",
        "celeriac-worker@.service",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_right_and_hardened(unit: Path, tmp_path: Path) -> None:
    # systemd looks whether the program is there: put one in its place that is.
    program_path = str(Path(sys.executable).parent / "celeriac")
    tried = tmp_path / unit.name
    tried.write_text(unit.read_text().replace("/opt/celeriac/bin/celeriac", program_path))
    systemd_analyze = program("systemd-analyze")

    verified = subprocess.run(
        [systemd_analyze, "verify", tried], capture_output=True, text=True, check=False
    )
    secured = subprocess.run(
        [systemd_analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSURE}", tried],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (verified.returncode, verified.stderr) == (0, "")
    assert secured.returncode == 0, secured.stdout + secured.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_what_the_compose_file_starts_and_starts_it_again(
    unit: Path, file: dict[str, Service]
) -> None:
    name = re.split(r"[-@.]", unit.name)[1]
    started = shlex.split(setting(unit, "ExecStart"))

    assert [Path(started[0]).name, *started[1:]] == on_loopback(file[name].command)
    assert setting(unit, "Restart") == "always"
    assert setting(unit, "User") == "celeriac"


def test_systemd_does_not_kill_a_worker_before_its_grace_is_over() -> None:
    worker = UNITS[2]
    grace_seconds = Settings.model_fields["grace_seconds"].default

    assert setting(worker, "KillMode") == "mixed"  # prefork's parent ends its children itself
    assert float(setting(worker, "TimeoutStopSec")) >= grace_seconds + 10


def test_the_procfile_starts_what_the_compose_file_starts(file: dict[str, Service]) -> None:
    lines = (ROOT / "deploy/Procfile").read_text().splitlines()
    started = dict(line.split(": ", 1) for line in lines)

    expected = {
        name: on_loopback(file[name].command) for name in ("scheduler", "worker", "api", "flower")
    }
    assert {name: shlex.split(command) for name, command in started.items()} == expected
