"""How long `celeriac up` takes: on an empty folder, again, and after SIGKILL of everything.

    python benchmarks/up.py [REPEATS]

Uses no server of this machine and no setting. Prints one JSON line; seconds from the command, each
the median of the repeats: both servers ready, all services ready, and, after SIGKILL of the
supervisor and all its services with a run queued, until a worker has committed a step of that run.
`killed_cpu` is the CPU time that all processes together have taken until all are ready: on a
machine that does something else besides, only that can be compared.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from celeriac.bench.processes import wait_until
from celeriac.client import Client
from celeriac.errors import DatabaseUnavailable
from celeriac.stack.description import Description, read_description

AGENTS = Path(__file__).parent.parent / "examples" / "order_desk.py"
GIVE_UP_SECONDS = 120.0


class Up:
    """A running `celeriac up`, and when each of its services was ready, from the command on."""

    def __init__(self, data: Path, *, workers: int = 2) -> None:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("CELERIAC_")}
        self.began = time.monotonic()
        self.popen = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "celeriac.cli.main", "up", "--workers", str(workers)],
            env={**kept, "CELERIAC_DATA": str(data), "CELERIAC_AGENTS": str(AGENTS)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.ready: dict[str, float] = {}
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            words = [*line.split(), "", ""]
            if words[0].startswith("Ready"):
                self.ready["all"] = self.seconds()
                return
            if words[1] == "ready":
                self.ready[words[0]] = self.seconds()
        raise SystemExit(f"`celeriac up` ended with exit code {self.popen.wait()}")

    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def servers(self) -> float:
        return max(self.ready["postgres"], self.ready["broker"])

    def cpu_seconds(self) -> float:
        """Of the supervisor and of all that it has started."""
        supervisor = psutil.Process(self.popen.pid)
        times = [each.cpu_times() for each in [supervisor, *supervisor.children(recursive=True)]]
        return sum(each.user + each.system for each in times)

    def stop(self) -> None:
        self.popen.terminate()
        self.popen.wait(GIVE_UP_SECONDS)

    def kill(self) -> None:
        """SIGKILL to the supervisor and to all that it has started."""
        supervisor = psutil.Process(self.popen.pid)
        for process in [*supervisor.children(recursive=True), supervisor]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.popen.wait(GIVE_UP_SECONDS)


def described(data: Path) -> Description:
    found = read_description(data)
    assert found is not None
    return found


def start_run(stack: Description) -> str:
    with Client(stack.database_url, stack.broker_url) as client:
        order = {"order_id": "O-1", "sku": "A-7", "quantity": 1}
        return client.start("order-desk", order).run_id


def wait_for_first_step(stack: Description, run_id: str) -> None:
    """Until a worker has committed it: what follows waits for a service that is not here."""

    def is_made() -> bool:
        with suppress(DatabaseUnavailable):  # not up yet
            return client.get(run_id).step > 0
        return False

    with Client(stack.database_url, stack.broker_url) as client:
        wait_until(is_made, GIVE_UP_SECONDS, f"run {run_id}", every=0.02)


def measure(data: Path) -> Mapping[str, float]:
    fresh = Up(data)
    fresh.stop()
    again = Up(data)
    again.stop()
    idle = Up(data, workers=0)
    stack = described(data)  # its servers will be where they are
    run_id = start_run(stack)
    idle.kill()
    with ThreadPoolExecutor(1) as beside:
        began = time.monotonic()
        starting = beside.submit(Up, data)
        wait_for_first_step(stack, run_id)
        first_step = time.monotonic() - began
        killed = starting.result()
        cpu = killed.cpu_seconds()
    killed.stop()
    return {
        "empty_folder_servers": fresh.servers,
        "empty_folder_all": fresh.ready["all"],
        "again_servers": again.servers,
        "again_all": again.ready["all"],
        "killed_servers": killed.servers,
        "killed_all": killed.ready["all"],
        "killed_first_step": first_step,
        "killed_cpu": cpu,
    }


def main(repeats: int) -> None:
    found = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="celeriac-up-") as folder:
            found.append(measure(Path(folder) / "data"))
    medians = {name: round(statistics.median(each[name] for each in found), 2) for name in found[0]}
    sys.stdout.write(json.dumps({"repeats": repeats, "seconds": medians}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
