"""Many steps pass together, or one suspect step alone, which does not wait for ever."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from celeriac_tasks.gate import Gate
from tests.waiting import eventually

SHUT_SECONDS = 0.2  # a thread that has not passed an open gate after this stands before a shut one
PASS_SECONDS = 5.0


class Newcomer:
    """A thread that goes in with others and out again at once."""

    def __init__(self, gate: Gate, on_entry: Callable[[], None] = lambda: None) -> None:
        def pass_through() -> None:
            with gate.shared():
                on_entry()

        self._thread = threading.Thread(target=pass_through, daemon=True)
        self._thread.start()

    def passes(self, seconds: float = PASS_SECONDS) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


@contextmanager
def neighbour(gate: Gate) -> Iterator[Callable[[], None]]:
    """A step that is inside until the function given here is called, or the block ends."""
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with gate.shared():
            inside.set()
            leave.wait(PASS_SECONDS * 2)

    thread = threading.Thread(target=stay, daemon=True)
    thread.start()
    assert inside.wait(PASS_SECONDS)

    def go() -> None:
        leave.set()
        thread.join(PASS_SECONDS)

    try:
        yield go
    finally:
        go()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def test_many_steps_are_inside_together(gate: Gate) -> None:
    all_inside = threading.Barrier(4)

    def meet() -> None:
        all_inside.wait(PASS_SECONDS)

    steps = [Newcomer(gate, meet) for _ in range(4)]

    assert all(step.passes() for step in steps)
    assert not all_inside.broken


def test_a_step_alone_lets_nobody_in_before_it_leaves(gate: Gate) -> None:
    with gate.alone() as is_alone:
        assert is_alone
        newcomer = Newcomer(gate)
        assert not newcomer.passes(SHUT_SECONDS)

    assert newcomer.passes()


def test_a_step_alone_keeps_another_such_step_out(gate: Gate) -> None:
    with gate.alone() as first:
        assert first
        with gate.alone(patience_seconds=0.05) as second:
            assert not second
        newcomer = Newcomer(gate)
        assert not newcomer.passes(SHUT_SECONDS), "the second one's leaving opened the first's gate"

    assert newcomer.passes()


def test_a_step_that_wants_to_be_alone_comes_before_newcomers(gate: Gate) -> None:
    order: list[str] = []

    def be_alone() -> None:
        with gate.alone(PASS_SECONDS) as is_alone:
            order.append("alone" if is_alone else "gave up")

    with neighbour(gate) as let_go:
        loner = threading.Thread(target=be_alone, daemon=True)
        loner.start()
        newcomer = eventually(
            lambda: Newcomer(gate, lambda: order.append("newcomer")),
            until=lambda thread: not thread.passes(SHUT_SECONDS),
            what="newcomers kept out while a step waits to be alone",
        )
        order.clear()  # those that came before the loner did
        let_go()
        loner.join(PASS_SECONDS)
        assert newcomer.passes()

    assert order == ["alone", "newcomer"]


def test_behind_a_neighbour_that_hangs_it_gives_up_and_newcomers_get_in_again(gate: Gate) -> None:
    with neighbour(gate):
        gave_up = threading.Event()

        def want_to_be_alone() -> None:
            with gate.alone(patience_seconds=1.0) as is_alone:
                assert not is_alone
                gave_up.set()

        loner = threading.Thread(target=want_to_be_alone, daemon=True)
        loner.start()
        waiting = eventually(
            lambda: Newcomer(gate),
            until=lambda thread: not thread.passes(SHUT_SECONDS),
            what="a newcomer kept out while a step waits to be alone",
        )

        assert gave_up.wait(PASS_SECONDS)
        assert waiting.passes(), "nobody woke the newcomer that waited"
        assert Newcomer(gate).passes()
        loner.join(PASS_SECONDS)


def test_after_it_gave_up_it_can_be_alone_another_time(gate: Gate) -> None:
    with neighbour(gate), gate.alone(patience_seconds=0.05) as is_alone:
        assert not is_alone

    with gate.alone(patience_seconds=0.05) as is_alone:
        assert is_alone


@pytest.mark.parametrize("enter", [Gate.shared, Gate.alone])
def test_a_step_that_fails_inside_leaves_the_gate_open(
    gate: Gate, enter: Callable[[Gate], ExitStack]
) -> None:
    with pytest.raises(ZeroDivisionError), enter(gate):
        raise ZeroDivisionError

    assert Newcomer(gate).passes()
    with gate.alone(patience_seconds=0.05) as is_alone:
        assert is_alone


def test_behind_steps_that_are_alone_one_after_another_a_step_gives_up(gate: Gate) -> None:
    with gate.alone() as is_alone:
        assert is_alone
        with gate.shared(patience_seconds=0.05) as is_inside:
            assert not is_inside

    with gate.alone(patience_seconds=0.05) as is_alone:
        assert is_alone, "the one that gave up counts as inside"
