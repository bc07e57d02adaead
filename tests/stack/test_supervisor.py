"""The supervisor's thread: nothing holds it up, and nobody waits for it in vain."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from celeriac.errors import StackFailed
from celeriac.stack import supervisor as supervising
from celeriac.stack.service import Program, State
from celeriac.stack.supervisor import Supervisor
from tests.waiting import eventually

MakeProgram = Callable[..., Program]


@pytest.fixture
def program(tmp_path: Path) -> MakeProgram:
    def program(
        name: str, is_ready: Callable[[int], bool] = lambda _: True, *, may_start: bool = True
    ) -> Program:
        return Program(
            name=name,
            command=["/bin/sleep", "1000"],
            environment={},
            folder=tmp_path,
            log=tmp_path / f"{name}.log",
            is_ready=is_ready,
            may_start=lambda: may_start,
        )

    return program


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor()
    yield supervisor
    names = [line.name for line in supervisor.lines]
    supervisor.stop(names)
    supervisor.close()


def test_a_service_that_gives_no_answer_holds_up_no_other_and_no_stop(
    supervisor: Supervisor, program: MakeProgram
) -> None:
    answer = threading.Event()
    give_up = threading.Event()
    with ThreadPoolExecutor(1) as others:
        stuck = program("stuck", lambda _: answer.wait(60))
        starting = others.submit(supervisor.start, [stuck], give_up)
        try:
            eventually(
                lambda: [line.state for line in supervisor.lines],
                until=lambda states: states == [State.STARTING],
            )
            supervisor.start([program("well")])
            supervisor.kill("well")
            give_up.set()
            supervisor.stop(["stuck"])
            assert not answer.is_set()
        finally:
            give_up.set()
            answer.set()
        with pytest.raises(StackFailed, match="told to stop"):
            starting.result()


def test_a_restart_that_comes_to_nothing_can_be_given_up_and_ends_by_itself(
    supervisor: Supervisor, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_well = threading.Event()
    is_well.set()
    supervisor.start([program("broker", lambda _: is_well.is_set())])
    give_up = threading.Event()
    give_up.set()

    with pytest.raises(StackFailed, match="told to stop"):
        supervisor.restart("broker", between=is_well.clear, give_up=give_up)

    monkeypatch.setattr(supervising, "RESTART_SECONDS", 0.2)
    with pytest.raises(StackFailed, match=r"broker is not ready again .*broker\.log"):
        supervisor.restart("broker")


def test_who_calls_while_it_is_being_closed_is_told_so(program: MakeProgram) -> None:
    go_on, is_held = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        is_held.set()
        go_on.wait(60)

    supervisor = Supervisor(hold)
    with ThreadPoolExecutor(3) as others:
        try:
            starting = others.submit(supervisor.start, [program("one", may_start=False)])
            assert is_held.wait(60)
            closing = others.submit(supervisor.close)
            eventually(supervisor._calls.qsize, until=lambda size: size == 1)
            killing = others.submit(supervisor.kill, "one")
            eventually(supervisor._calls.qsize, until=lambda size: size == 2)
        finally:
            go_on.set()
        closing.result()
        with pytest.raises(StackFailed, match="has been stopped"):
            killing.result(10)
        with pytest.raises(StackFailed, match="has been stopped"):
            starting.result(10)
