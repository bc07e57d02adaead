"""A process that has imported everything and forks workers and schedulers within milliseconds.

A worker's imports take seconds, and the tests of this folder kill some two hundred workers. Apart
from the imports a forked one starts like any other: `celeriac.cli.main` with its own environment,
folder, output and process group. `python -m tests.crash.nursery` is the process; `Nursery` talks to
it, a JSON line for each request and each answer.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from tests.processes import ROOT
from tests.waiting import POLL_SECONDS

WHOLE_PACKAGES = (
    "celeriac",
    "celeriac_storage",
    "celeriac_tasks",
    "celeriac_scheduler",
    "celeriac_api",
    "celery.worker",
)
MODULES = (
    "anyio._backends._asyncio",
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.log",
    "celery.app.trace",
    "celery.apps.worker",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "examples.order_desk",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "pydantic_ai.models",
    "sqlalchemy.dialects.postgresql.psycopg",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.h11_impl",
)


class Nursery:
    """The running process; ends at `close`, and whatever it forked ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                name: value for name, value in os.environ.items() if not name.startswith("CELERIAC")
            },
        )

    def fork(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, output: Path
    ) -> "ForkedProcess":
        """Start `celeriac COMMAND`, as `subprocess.Popen` would in a session of its own."""
        answer = self.ask(
            command=list(command),
            environment=dict(environment),
            folder=str(folder),
            output=str(output),
        )
        return ForkedProcess(self, answer["pid"])

    def ask(self, **request: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, f"the nursery has ended ({self._process.wait()})"
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate()


class ForkedProcess:
    """A child of the nursery, with what the tests use of `subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        if self._exit_code is None:
            self._exit_code = self._nursery.ask(poll=self.pid)["exit_code"]
        return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while (exit_code := self.poll()) is None:
            if give_up_at is not None and time.monotonic() > give_up_at:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return exit_code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def serve() -> None:
    """Fork on request, until there is nobody left to ask."""
    _import_everything()
    children: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            answer = {"exit_code": _exit_code(request["poll"], children)}
        else:
            pid = os.fork()
            if pid == 0:
                _become(**request)
            children.add(pid)
            answer = {"pid": pid}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for pid in children:
        os.kill(pid, signal.SIGKILL)  # not yet waited for, so it is still ours


def _import_everything() -> None:
    """All of Celeriac, and what it and Celery, SQLAlchemy or uvicorn load when they start.

    By name: an import that nothing here uses is one that a formatter takes away.
    """
    for package in WHOLE_PACKAGES:
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            if not module.name.endswith(".__main__"):
                import_module(module.name)
    for name in MODULES:
        import_module(name)
    gc.freeze()  # the children's collectors leave our objects, and so the memory's pages, alone


def _exit_code(pid: int, children: set[int]) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if ended == 0:
        return None
    children.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _become(command: list[str], environment: dict[str, str], folder: str, output: str) -> None:
    exit_code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        _redirect(output)
        sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)
        # The only thing of ours that reads the environment while it is imported.
        from celeriac import testpoints

        testpoints._armed = testpoints._parse(environment.get("CELERIAC_TEST_POINTS", ""))
        if mutant := environment.get("CRASH_TEST_MUTANT"):
            from tests.crash import mutants

            getattr(mutants, mutant)()
        from celeriac.cli.main import app

        sys.argv = ["celeriac", *command]
        app()
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - whatever it is, `os._exit` below would hide it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def _redirect(output: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for source, target in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(source, target)
    for stream in (sys.stdout, sys.stderr):
        assert hasattr(stream, "reconfigure")
        stream.reconfigure(line_buffering=True)


if __name__ == "__main__":
    serve()
