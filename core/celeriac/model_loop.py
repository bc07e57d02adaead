"""The process's one event loop: model calls and `async def` tools run on it, in a daemon thread.

Worker threads hand it coroutines and wait. As there is one loop, all model calls of the process
share each provider's HTTP connections, which belong to the loop that opened them. Nothing on it may
block: a blocking `async def` tool would hold up every model call.

The loop starts at first use, so after the fork in a child of a prefork pool. A child of a process
that had a loop already starts its own and never touches the inherited one.
"""

import asyncio
import atexit
import contextvars
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

# How long a cancelled coroutine may take to end before nobody waits for it any more.
CANCEL_GRACE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that is neither open nor running in a child forked from its process.

    A plain one claims in the child to be running still, though its thread is not there, so that
    pydantic-ai would go on with connections that are the parent's. Nor may it be closed there: both
    processes hold one epoll instance, closing removes the wakeup socket from it, and the parent's
    loop would never wake again.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        super().__init__()

    def is_running(self) -> bool:
        return os.getpid() == self._pid and super().is_running()

    def is_closed(self) -> bool:
        return os.getpid() != self._pid or super().is_closed()


@dataclass
class _Running:
    loop: _Loop
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._serve, name="celeriac-model-loop", daemon=True)

    def _serve(self) -> None:
        self.loop.run_forever()
        try:
            self.loop.run_until_complete(self._wind_down())
        finally:
            self.loop.close()

    async def _wind_down(self) -> None:
        tasks = asyncio.all_tasks() - {_current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            _, stubborn = await asyncio.wait(tasks, timeout=CANCEL_GRACE_SECONDS)
            for task in stubborn:
                logger.error("a task of the model loop refuses to be cancelled: %r", task)
        for closer in self.closers:
            try:
                async with asyncio.timeout(CANCEL_GRACE_SECONDS):
                    await closer()
            except Exception:
                logger.exception("closing the model loop: %r failed", closer)
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()


_lock = threading.Lock()
_running: _Running | None = None
_inherited: list[_Running] = []  # referenced for ever: collecting one would close its sockets


def submit(coroutine: Coroutine[Any, Any, T], *, timeout_seconds: float | None = None) -> Future[T]:
    """Start `coroutine` on the loop. Cancelling the future cancels it, and its HTTP request too.

    It sees the caller's context variables. After `timeout_seconds` it is cancelled, and the future
    fails with `TimeoutError` once it has ended. The future is cancelled if the loop is closed.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()
    with _lock:
        loop = _started().loop
        loop.call_soon_threadsafe(_start, loop, coroutine, timeout_seconds, future, context=context)
    return future


def run(coroutine: Coroutine[Any, Any, T], *, timeout_seconds: float | None = None) -> T:
    """The result of `coroutine`, run on the loop, or what it raises. For worker threads.

    After `timeout_seconds` it is cancelled and `TimeoutError` raised, `CANCEL_GRACE_SECONDS` later
    at the latest. It is cancelled as well if the waiting thread is interrupted by an exception.
    Raises `concurrent.futures.CancelledError` if the loop is closed meanwhile.
    """
    if _running is not None and threading.current_thread() is _running.thread:
        coroutine.close()
        raise RuntimeError("the model loop cannot wait for itself: await the coroutine instead")
    future = submit(coroutine, timeout_seconds=timeout_seconds)
    patience = None if timeout_seconds is None else timeout_seconds + CANCEL_GRACE_SECONDS
    try:
        return future.result(patience)
    finally:
        future.cancel()  # nothing happens to a future that is done


def at_close(closer: Callable[[], Awaitable[None]]) -> None:
    """Have `closer` awaited before the running loop ends. To be called on the loop."""
    if _running is None or threading.current_thread() is not _running.thread:
        raise RuntimeError("not on the model loop: start the coroutine with model_loop.run()")
    _running.closers.append(closer)


def close() -> None:
    """Cancel what runs on the loop, wait until it has ended, close connections, end the thread.

    Without a loop in this process it does nothing. The next call starts a new one.
    """
    global _running
    with _lock:
        running, _running = _running, None
    if running is not None:
        atexit.unregister(close)
        running.loop.call_soon_threadsafe(running.loop.stop)
        running.thread.join()


def _started() -> _Running:
    global _running
    if _running is None:
        _running = _Running(_Loop())
        _running.thread.start()
        # A daemon thread is frozen at exit wherever it is, which would leave requests half sent.
        atexit.register(close)
    return _running


def _start(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, T],
    timeout_seconds: float | None,
    future: Future[T],
) -> None:
    if future.cancelled():
        coroutine.close()
        future.set_running_or_notify_cancel()
        return
    task = loop.create_task(_within(coroutine, timeout_seconds))

    def settle(task: asyncio.Task[T]) -> None:
        coroutine.close()  # cancelled before its first step, it would warn of never being awaited
        try:
            if task.cancelled():
                future.cancel()
                future.set_running_or_notify_cancel()
            elif (error := task.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())
        except InvalidStateError:
            pass  # cancelled by the caller at the same moment

    def cancel(future: Future[T]) -> None:
        if future.cancelled() and not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)

    task.add_done_callback(settle)
    future.add_done_callback(cancel)


async def _within(coroutine: Coroutine[Any, Any, T], timeout_seconds: float | None) -> T:
    try:
        async with asyncio.timeout(timeout_seconds) as limit:
            return await coroutine
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(
            f"{coroutine!r} was cancelled as it took longer than {timeout_seconds:g} s"
        ) from None


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _leave_the_parents_alone() -> None:
    """In a forked child: the loop's thread is not here, and another may have held the lock."""
    global _lock, _running
    _lock = threading.Lock()
    if _running is not None:
        _inherited.append(_running)
        _running = None


os.register_at_fork(after_in_child=_leave_the_parents_alone)
