import asyncio
import concurrent.futures
import contextvars
import os
import threading
import time
from collections.abc import Iterator

import pytest

from celeriac import model_loop

PATIENCE_SECONDS = 60.0
"""What would be waited for a thread that does not end; not to wait takes less on any machine."""

request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="none")


@pytest.fixture(autouse=True)
def _closed_afterwards() -> Iterator[None]:
    yield
    model_loop.close()


async def thread_id() -> int:
    return threading.get_ident()


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "celeriac-model-loop"]


class Witness:
    """A coroutine that waits for ever, and tells how far it came."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()

    async def wait(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_all_threads_share_one_loop() -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        seen = set(pool.map(lambda _: model_loop.run(thread_id()), range(50)))

    assert len(seen) == 1
    assert threading.get_ident() not in seen


def test_what_a_coroutine_raises_reaches_its_caller() -> None:
    async def fail() -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        model_loop.run(fail())


def test_a_coroutine_sees_its_callers_context_variables() -> None:
    async def seen() -> str:
        return request_id.get()

    request_id.set("r-1")

    assert model_loop.run(seen()) == "r-1"


def test_a_deadline_cancels_the_coroutine() -> None:
    witness = Witness()

    with pytest.raises(TimeoutError, match=r"Witness.wait took longer than 0\.05 s"):
        model_loop.run(witness.wait(), timeout_seconds=0.05)

    assert witness.cancelled.is_set()


def test_a_timeout_inside_the_coroutine_keeps_its_own_words() -> None:
    async def give_up() -> None:
        raise TimeoutError("the database was slow")

    with pytest.raises(TimeoutError, match="the database was slow"):
        model_loop.run(give_up(), timeout_seconds=5)


def test_cancelling_the_future_cancels_the_coroutine() -> None:
    witness = Witness()
    future = model_loop.submit(witness.wait())
    assert witness.started.wait(5)

    assert future.cancel()

    assert witness.cancelled.wait(5)
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)


def test_cancelling_before_the_start_is_no_trouble() -> None:
    witness = Witness()

    async def hold_up_the_loop() -> None:
        time.sleep(0.05)  # noqa: ASYNC251  on purpose: what follows cannot start before

    model_loop.submit(hold_up_the_loop())
    future = model_loop.submit(witness.wait())

    assert future.cancel()

    model_loop.run(asyncio.sleep(0))
    assert not witness.started.is_set()


def test_closing_cancels_what_runs_and_ends_the_thread() -> None:
    witness = Witness()
    future = model_loop.submit(witness.wait())
    assert witness.started.wait(5)

    model_loop.close()

    assert witness.cancelled.is_set()
    assert loop_threads() == []
    with pytest.raises(concurrent.futures.CancelledError):
        future.result(0)


def test_closing_waits_for_what_was_to_be_closed_with_the_loop() -> None:
    closed: list[str] = []

    async def open_something() -> None:
        model_loop.at_close(close_slowly)
        model_loop.at_close(fail)

    async def close_slowly() -> None:
        await asyncio.sleep(0.01)
        closed.append("slow")

    async def fail() -> None:
        closed.append("failed")
        raise OSError("cannot close")

    model_loop.run(open_something())
    model_loop.close()

    assert closed == ["slow", "failed"]


def test_what_starts_while_the_loop_closes_can_still_be_closed_with_it() -> None:
    closed = threading.Event()
    closing = threading.Event()

    async def start_late() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closing.set()
            model_loop.at_close(close_it)

    async def close_it() -> None:
        closed.set()

    witness = Witness()
    model_loop.submit(start_late())
    model_loop.submit(witness.wait())
    assert witness.started.wait(5)
    model_loop.close()

    assert closing.is_set()
    assert closed.is_set()


def test_a_thread_that_a_coroutine_left_behind_does_not_hold_up_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_loop, "CANCEL_GRACE_SECONDS", PATIENCE_SECONDS)
    release = threading.Event()

    async def block_a_thread() -> None:
        await asyncio.to_thread(release.wait)

    future = model_loop.submit(block_a_thread())
    started = time.monotonic()
    model_loop.run(asyncio.sleep(0.01))
    model_loop.close()

    assert time.monotonic() - started < PATIENCE_SECONDS
    assert future.cancelled()
    release.set()


def test_after_closing_the_next_call_starts_a_new_loop() -> None:
    model_loop.run(thread_id())
    model_loop.close()
    model_loop.close()

    model_loop.run(thread_id())

    assert len(loop_threads()) == 1


def test_fifty_starts_and_stops_leave_no_thread_behind() -> None:
    for _ in range(50):
        model_loop.run(thread_id())
        model_loop.close()

    assert loop_threads() == []


def test_waiting_on_the_loop_for_the_loop_is_refused() -> None:
    async def wait_for_itself() -> int:
        return model_loop.run(thread_id())

    with pytest.raises(RuntimeError, match="cannot wait for itself"):
        model_loop.run(wait_for_itself())


# From Python 3.12 on, forking beside a thread warns. A child of a prefork pool does just that.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_a_loop_of_its_own_and_cannot_hurt_the_parents() -> None:
    async def process_id() -> int:
        return os.getpid()

    model_loop.run(process_id())
    child = os.fork()
    if child == 0:
        inherited = model_loop._inherited.pop()
        inherited.close()  # as collecting it would
        answer = model_loop.run(process_id(), timeout_seconds=5)
        os._exit(0 if answer == os.getpid() else 1)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert model_loop.run(process_id(), timeout_seconds=5) == os.getpid()
