"""One thread that starts services in their order, watches them, and stops them.

All services are started by this thread and by no other: Linux ends a child when the *thread* that
started it ends (`prctl(2)`, PR_SET_PDEATHSIG), and so each lives exactly as long as its supervisor.
Others talk to the thread through calls that it makes for them.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from celeriac.errors import StackFailed
from celeriac.stack.log import rotate
from celeriac.stack.service import Line, Program, Service, State

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.05
ROTATE_SECONDS = 2.0
ALIVE_SECONDS = 1.0  # how often a caller looks whether the thread is still there
RESTART_SECONDS = 90.0  # a first start may take 60 s, on a machine that does much else besides

Answer = TypeVar("Answer")


class Supervisor:
    """Runs programs until it is stopped. Safe to call from any thread.

    `on_change` is called with all lines, in the supervisor's thread, whenever one has changed.
    """

    def __init__(self, on_change: Callable[[Sequence[Line]], None] = lambda _: None) -> None:
        self._on_change = on_change
        self._services: list[Service] = []
        self._lines: tuple[Line, ...] = ()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="celeriac-supervisor", daemon=True)
        self._thread.start()

    @property
    def lines(self) -> tuple[Line, ...]:
        """All services as they were at the last tick, in the order of their start."""
        return self._lines

    def start(self, programs: Sequence[Program], give_up: threading.Event | None = None) -> None:
        """`launch` and `wait` in one."""
        self.launch(programs)
        self.wait([program.name for program in programs], give_up)

    def launch(self, programs: Sequence[Program]) -> None:
        """Start programs side by side, and wait for none."""
        self._call(lambda: self._add(programs))

    def wait(self, names: Sequence[str], give_up: threading.Event | None = None) -> None:
        """Returns when all of these services are ready.

        Raises `StackFailed` if one fails or `give_up` is set first; they are left to `stop`.
        """
        for line in self._wait_for(
            lambda lines: (
                all(
                    line.state in (State.READY, State.FAILED)
                    for line in lines
                    if line.name in names
                )
                or any(line.state is State.FAILED for line in lines if line.name in names)
            ),
            give_up,
        ):
            if line.name in names and line.state is State.FAILED:
                raise StackFailed(f"{line.name} {line.problem}. Its log is {self._log(line.name)}")

    def stop(self, names: Sequence[str], hurry: threading.Event | None = None) -> None:
        """Stop services side by side; returns when all are down. Others are left as they are.

        When `hurry` is set, those still up are killed.
        """
        self._call(lambda: self._each(names, lambda service: service.stop(time.monotonic())))
        is_hurried = False
        while any(line.state is not State.DOWN for line in self._lines if line.name in names):
            if hurry is not None and hurry.is_set() and not is_hurried:
                is_hurried = True
                self._call(lambda: self._each(names, Service.kill))
            self._wait_a_tick()

    def restart(
        self,
        name: str,
        between: Callable[[], None] = lambda: None,
        give_up: threading.Event | None = None,
    ) -> None:
        """Kill a service, do something while it is down, and start it again, without a wait.

        Returns when it is ready. Raises `StackFailed` if it is not within `RESTART_SECONDS`, or if
        `give_up` is set first; it is then still tried.
        """
        self._call(lambda: self._each([name], Service.kill))
        self.stop([name])
        self._call(between)
        self._call(lambda: self._each([name], lambda service: service.start(time.monotonic())))
        deadline = time.monotonic() + RESTART_SECONDS
        for line in self._wait_for(
            lambda lines: _line(lines, name).state is State.READY or time.monotonic() > deadline,
            give_up,
        ):
            if line.name == name and line.state is not State.READY:
                raise StackFailed(
                    f"{name} is not ready again {RESTART_SECONDS:g} s after it was killed"
                    f"{f': it {line.problem}' if line.problem else ''}. Its log is "
                    f"{self._log(name)}"
                )

    def kill(self, name: str) -> int:
        """SIGKILL to a service's whole process group; it is started again. Returns the number of
        the group, which was the pid of its leader. Raises `StackFailed` if it does not run."""
        service = self._find(name)
        pid = self._call(service.kill)
        if pid is None:
            raise StackFailed(f"{name} does not run just now: {service.problem}")
        return pid

    def close(self) -> None:
        """End the thread. Services that were not stopped are killed by that."""
        self._call(self._end)
        self._thread.join()

    # In the supervisor's thread ---------------------------------------------------------------

    def _watch(self) -> None:
        rotated_at = time.monotonic()
        while not self._is_over:
            with suppress(queue.Empty):
                self._calls.get(timeout=TICK_SECONDS)()
            now = time.monotonic()
            for service in self._services:
                self._tick(service, now)
            if now - rotated_at > ROTATE_SECONDS:
                rotated_at = now
                for service in self._services:
                    rotate(service.program.log)
            self._tell()

    def _tick(self, service: Service, now: float) -> None:
        try:
            service.tick(now)
        except Exception:  # whatever it is, the other services must still be watched
            logger.exception("cannot look after %s", service.program.name)

    def _tell(self) -> None:
        lines = tuple(service.line for service in self._services)
        if lines == self._lines:
            return
        with self._changed:
            self._lines = lines
            self._changed.notify_all()
        try:
            self._on_change(lines)
        except Exception:  # a full disk, say: that the services run on matters more
            logger.exception("cannot tell how the services are")

    def _add(self, programs: Sequence[Program]) -> None:
        for program in programs:
            service = Service(program)
            service.start(time.monotonic())
            self._services.append(service)
        self._tell()

    def _each(self, names: Sequence[str], act: Callable[[Service], object]) -> None:
        for service in self._services:
            if service.program.name in names:
                act(service)
        self._tell()

    def _end(self) -> None:
        self._is_over = True

    # In any other thread ------------------------------------------------------------------------

    def _call(self, act: Callable[[], Answer]) -> Answer:
        """Have the supervisor's thread do something; its answer or its error is ours."""
        if self._is_over:
            raise StackFailed("the stack has been stopped")
        answer: Future[Answer] = Future()

        def do() -> None:
            try:
                answer.set_result(act())
            except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
                answer.set_exception(error)

        self._calls.put(do)
        while True:
            try:
                return answer.result(ALIVE_SECONDS)
            except TimeoutError:
                if answer.done():
                    raise  # its own
                # Closed since we looked: what was put behind that is never taken.
                if not self._thread.is_alive():
                    raise StackFailed("the stack has been stopped") from None

    def _wait_for(
        self,
        fact: Callable[[Sequence[Line]], bool],
        give_up: threading.Event | None = None,
    ) -> Sequence[Line]:
        while not fact(lines := self._lines):
            if not self._thread.is_alive():
                raise StackFailed("the stack has been stopped")
            if give_up is not None and give_up.is_set():
                raise StackFailed("it was told to stop before everything was up")
            self._wait_a_tick()
        return lines

    def _wait_a_tick(self) -> None:
        with self._changed:
            self._changed.wait(0.1)

    def _find(self, name: str) -> Service:
        for service in self._services:
            if service.program.name == name:
                return service
        known = ", ".join(service.program.name for service in self._services)
        raise StackFailed(f"the stack has no service {name}; it has {known}")

    def _log(self, name: str) -> str:
        return str(self._find(name).program.log)


def _line(lines: Sequence[Line], name: str) -> Line:
    return next(line for line in lines if line.name == name)
