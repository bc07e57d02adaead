"""One supervised program: started, watched, started again, stopped.

down ──start──▶ starting ──is_ready──▶ ready
                   │ ended, or too late   │ ended
                   ▼                      ▼
                waiting ◀─────────────────┘        (first start: failed)
                   │ the wait is over, may_start
                   ▼
                starting …                         stop, from anywhere: stopping ──▶ down
"""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from celeriac.stack.account import Account
from celeriac.stack.launching import KERNEL_TELLS, launched
from celeriac.stack.log import last_words, open_log, size
from celeriac.stack.question import Question

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 15.0
STEADY_SECONDS = 5.0
"""A service that was ready for so long has not failed because of how it was started."""


class State(StrEnum):
    DOWN = "down"
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # to be started again
    FAILED = "failed"  # at its very first start; it is not tried again
    STOPPING = "stopping"


def _always() -> bool:
    return True


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a service runs, and how it is treated."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]  # all of it: nothing is inherited
    folder: Path  # to work in
    log: Path
    address: str | None = None  # host:port, or a URL to be opened
    account: Account | None = None  # None: as ourselves
    input: int = subprocess.DEVNULL  # a descriptor
    is_ready: Callable[[int], bool]
    """Asked with its pid while it starts, in a thread of its own (`Question`)."""
    may_start: Callable[[], bool] = _always
    """Asked before each start, until it is so: what the last one left may be in the way."""
    ready_seconds: float = 60.0
    is_held: Callable[[], bool] = _never
    """Whether it waits to be let go on: it is not asked until then, and its time does not count."""
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 10.0  # then it is killed
    orphan_signal: signal.Signals = signal.SIGKILL  # when the supervisor is killed


@dataclass(frozen=True, slots=True)
class Line:
    """A service as others see it."""

    name: str
    pid: int | None  # of the process that leads its process group; None while it does not run
    address: str | None
    state: State
    restarts: int
    problem: str | None  # why it is not ready, or was not the last time


@dataclass(slots=True)
class _Process:
    popen: "subprocess.Popen[bytes]"
    guard: int | None  # our end of the guard's pipe, where the kernel sends no signal
    log_begins: int


@dataclass(slots=True)
class Service:
    """The state machine of one program. Belongs to one thread, which must outlive the program."""

    program: Program
    state: State = State.DOWN
    restarts: int = 0
    problem: str | None = None
    _process: _Process | None = None
    _since: float = 0.0  # when this state began, by the monotonic clock
    _wait_seconds: float = 0.0
    _next_wait_seconds: float = FIRST_WAIT_SECONDS
    _was_ready: bool = False
    _is_ready: Question = field(init=False)

    def __post_init__(self) -> None:
        self._is_ready = Question(self.program.is_ready)

    @property
    def line(self) -> Line:
        pid = self._process.popen.pid if self._process is not None else None
        return Line(
            self.program.name, pid, self.program.address, self.state, self.restarts, self.problem
        )

    def start(self, now: float) -> None:
        """Start it at the next tick."""
        self._next_wait_seconds = FIRST_WAIT_SECONDS
        self._wait_seconds = 0.0
        self._enter(State.WAITING, now)

    def tick(self, now: float) -> None:
        """Look how it is, and do what is due. Does not block."""
        match self.state:
            case State.WAITING if now - self._since >= self._wait_seconds:
                if self.program.may_start():
                    self._launch(now)
            case State.STARTING:
                self._look_at_start(now)
            case State.READY if (ended := self._ended()) is not None:
                self._fail(now, f"{ended} after it had been ready")
            case State.STOPPING:
                if self._ended() is not None:
                    self._enter(State.DOWN, now)
                elif now - self._since > self.program.stop_seconds:
                    self._signal_group(signal.SIGKILL)

    def stop(self, now: float) -> None:
        """Ask it to end; `tick` sees to it that it does."""
        if self._process is None:
            self._enter(State.DOWN, now)
            return
        self._process.popen.send_signal(self.program.stop_signal)
        self._enter(State.STOPPING, now)

    def kill(self) -> int | None:
        """SIGKILL to its whole process group, whose number is returned; `tick` starts it again."""
        if self._process is None:
            return None
        self._signal_group(signal.SIGKILL)
        self._next_wait_seconds = FIRST_WAIT_SECONDS
        return self._process.popen.pid

    def _launch(self, now: float) -> None:
        program = self.program
        log_begins = size(program.log)
        theirs, ours = (None, None) if KERNEL_TELLS else os.pipe()
        output = None
        try:
            output = open_log(program.log)
            popen = subprocess.Popen(  # noqa: S603 - a program of ours
                launched(
                    program.command,
                    account=program.account,
                    orphan_signal=program.orphan_signal,
                    guard=theirs,
                ),
                cwd=program.folder,
                env=dict(program.environment),
                stdin=program.input,
                stdout=output,
                stderr=output,
                # A session of its own: Ctrl-C is for the supervisor, which ends all in order.
                start_new_session=True,
                pass_fds=() if theirs is None else (theirs,),
            )
        except OSError as error:
            self._fail(now, f"could not be started: {error}")
            _close(ours)
        else:
            self._process = _Process(popen, ours, log_begins)
            self._enter(State.STARTING, now)
        finally:
            _close(output)
            _close(theirs)

    def _look_at_start(self, now: float) -> None:
        assert self._process is not None
        log_begins = self._process.log_begins
        if (ended := self._ended()) is not None:
            said = last_words(self.program.log, since=log_begins)
            self._fail(now, f"{ended} while it started{f': {said}' if said else ''}")
        elif self.program.is_held():
            self._since = now
        elif self._is_ready.is_so(self._process.popen.pid):
            self._was_ready = True
            self._enter(State.READY, now)
        elif now - self._since > self.program.ready_seconds:
            self._signal_group(signal.SIGKILL)
            self._process.popen.wait()
            self._ended()
            said = last_words(self.program.log, since=log_begins)
            self._fail(
                now,
                f"was not ready within {self.program.ready_seconds:g} s"
                f"{f'; its last words: {said}' if said else ''}",
            )

    def _fail(self, now: float, problem: str) -> None:
        self.problem = problem
        if not self._was_ready:
            self._enter(State.FAILED, now)
            return
        if self.state is State.READY and now - self._since >= STEADY_SECONDS:
            self._next_wait_seconds = FIRST_WAIT_SECONDS
        self._wait_seconds = self._next_wait_seconds
        self._next_wait_seconds = min(self._next_wait_seconds * 2, LONGEST_WAIT_SECONDS)
        self.restarts += 1
        self._enter(State.WAITING, now)

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self._since = now

    def _ended(self) -> str | None:
        """How its process ended; None if it runs. What it left of its group ends with it."""
        if self._process is None:
            return "it did not run"
        popen = self._process.popen
        code = popen.poll()
        if code is None:
            return None
        # Its number stays taken while any of the group is left, such as a pool's children.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
        _close(self._process.guard)
        self._process = None
        if code < 0:
            return f"was ended by a signal ({signal.strsignal(-code) or -code})"
        return f"ended with exit code {code}"

    def _signal_group(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.popen.pid, number)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
