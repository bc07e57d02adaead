"""`docker-compose.yml` as Compose reads it, and its services as processes of this machine.

No container engine is needed: each service runs its very command with its very environment, in the
order and under the restart policy that the file says, on servers of the test's own.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.servers import missing
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
UP_SECONDS = 90.0
"""Two workers, two schedulers and Flower import Celery side by side, maybe beside other tests."""

VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<text>[^}]*))?\})")


class MissingVariable(Exception):
    """Compose would refuse to start: a variable that has no default is not set."""


@dataclass(frozen=True)
class Service:
    """One service with all variables replaced. `raw` is its mapping in the file."""

    name: str
    raw: Mapping[str, Any]

    @property
    def command(self) -> list[str]:
        """What the container executes: entrypoint and command. (The entrypoints of others' images
        only prepare for that.)"""
        entrypoint = image_entrypoint() if self.is_ours else []
        return [*self.raw.get("entrypoint", entrypoint), *self.raw["command"]]

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.raw.get("environment", {}).items()}

    @property
    def health_command(self) -> list[str] | None:
        kind, *arguments = self.raw.get("healthcheck", {}).get("test", [None])
        return ["sh", "-c", *arguments] if kind == "CMD-SHELL" else arguments or None

    @property
    def replicas(self) -> int:
        return int(self.raw.get("deploy", {}).get("replicas", 1))

    @property
    def restarts(self) -> bool:
        return self.raw.get("restart") in ("always", "unless-stopped")

    @property
    def is_ours(self) -> bool:
        """Whether it runs the image of the Dockerfile."""
        return "build" in self.raw

    @property
    def depends_on(self) -> dict[str, str]:
        """The condition that each of these must fulfil first."""
        found = self.raw.get("depends_on", {})
        return {name: depended["condition"] for name, depended in found.items()}


def services(variables: Mapping[str, str]) -> dict[str, Service]:
    """The file's services, those of profiles included. Raises `MissingVariable`."""
    read = yaml.safe_load(FILE.read_text())
    return {
        name: Service(name, _replaced(raw, variables)) for name, raw in read["services"].items()
    }


def variables_of(env_file: Path) -> dict[str, str]:
    """The variables of an env file."""
    lines = [line for line in env_file.read_text().splitlines() if line and line[0] != "#"]
    return dict(line.split("=", 1) for line in lines)


def seconds(text: str) -> float:
    """A duration as the file writes it."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text)
    assert found is not None, text
    return 60 * int(found.group(1) or 0) + int(found.group(2) or 0)


def program(name: str, *folders: Path) -> str:
    """A program of the dev group, of these folders or of this machine; without it the test is
    skipped, in CI it fails."""
    search = [Path(sys.executable).parent, *folders, *os.environ["PATH"].split(":")]
    found = shutil.which(name, path=":".join(map(str, search)))
    if found is None:
        missing(name, FileNotFoundError("not installed"))
    return found


def image_entrypoint() -> list[str]:
    """The entrypoint of the image."""
    found = re.search(r"^ENTRYPOINT (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert found is not None
    entrypoint: list[str] = json.loads(found.group(1))
    return entrypoint


def _replaced(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, variables) for each in value]
    if not isinstance(value, str):
        return value

    def variable(found: re.Match[str]) -> str:
        name = found["name"]
        if name is None:
            return "$"
        if given := variables.get(name):
            return given
        if found["kind"] == "-":
            return found["text"]
        raise MissingVariable(name)

    return VARIABLE.sub(variable, value)


class Container:
    """One process of a service, with a host name of its own as in a container."""

    def __init__(self, host: "Host", service: Service, number: int) -> None:
        self.service = service
        self.name = f"{service.name}-{number}"
        self._host = host
        self._output = host.folder / f"{self.name}.log"
        self.start()

    def start(self) -> None:
        with self._output.open("ab") as output:
            self._popen = subprocess.Popen(
                self._in_container(self.service.command),
                env=self._environment,
                cwd=self._host.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def check_health(self) -> int:
        """Run the health check once; its exit code."""
        command = self.service.health_command
        assert command is not None
        return self.execute(*command).returncode

    def wait_until_healthy(self) -> None:
        eventually(
            lambda: not self.is_running or self.check_health() == 0,
            deadline_seconds=UP_SECONDS,
            what=f"{self.name} healthy",
        )
        assert self.is_running, self.output

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run another command in the same container, as `docker compose exec` does."""
        return subprocess.run(
            self._in_container(command),
            env=self._environment,
            cwd=self._host.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole group, unless it has ended."""
        if self.is_running:  # the pid is reused only after we have waited for it
            os.killpg(self.pid, number)

    def wait(self, deadline_seconds: float) -> int:
        """Its exit code; fails after the deadline."""
        return self._popen.wait(deadline_seconds)

    @property
    def _environment(self) -> dict[str, str]:
        """The service's own and nothing of this process's but where programs are."""
        own = {name: self._host.local(value) for name, value in self.service.environment.items()}
        return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **own}

    def _in_container(self, command: Sequence[str]) -> list[str]:
        local = [self._host.local(argument) for argument in command]
        return [*own_hostname(self.name), *local]


def own_hostname(name: str) -> list[str]:
    """What to put before a command so that it runs under a host name of its own."""
    unshare = ["unshare", "--uts"] if os.getuid() == 0 else ["unshare", "--map-root-user", "--uts"]
    return [*unshare, "sh", "-c", 'hostname "$0" && exec "$@"', name]


class Host:
    """Runs the file's services as `docker compose up` does, except for those that exist already.

    `addresses` says what stands on this machine in the place of an address or path of a container.
    """

    def __init__(
        self, services: Mapping[str, Service], addresses: Mapping[str, str], folder: Path
    ) -> None:
        self.folder = folder
        self.containers: list[Container] = []
        self._services = services
        self._addresses = addresses

    def local(self, text: str) -> str:
        # At once: a port that was put in may look like one that is to be replaced.
        there = "|".join(map(re.escape, self._addresses))
        return re.sub(there, lambda found: self._addresses[found[0]], text)

    def up(self, *existing: str) -> None:
        """Start all other services, each when what it depends on is as it asks; returns when every
        health check is content."""
        started = set(existing)
        while waiting := [name for name in self._services if name not in started]:
            ready = [name for name in waiting if self._services[name].depends_on.keys() <= started]
            assert ready, f"these depend on each other: {waiting}"
            for name in ready:
                service = self._services[name]
                for depended, condition in service.depends_on.items():
                    if depended not in existing:
                        self._wait(depended, condition)
                self.containers += [
                    Container(self, service, number + 1) for number in range(service.replicas)
                ]
            started |= set(ready)
        for container in self.containers:
            if container.service.health_command is not None:
                container.wait_until_healthy()

    def restart_ended(self) -> None:
        """Start again what has ended, where the restart policy says so, and wait until healthy."""
        ended = [each for each in self.containers if not each.is_running and each.service.restarts]
        for container in ended:
            container.start()
        for container in ended:
            container.wait_until_healthy()

    def of(self, name: str) -> list[Container]:
        """The containers of a service."""
        return [container for container in self.containers if container.service.name == name]

    def close(self) -> None:
        for container in reversed(self.containers):
            container.signal(signal.SIGKILL)
            container.wait(10)

    def _wait(self, name: str, condition: str) -> None:
        for container in self.of(name):
            if condition == "service_completed_successfully":
                assert container.wait(UP_SECONDS) == 0, container.output
            else:
                assert condition == "service_healthy"
                container.wait_until_healthy()
