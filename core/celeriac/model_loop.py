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
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

# How long a cancelled coroutine may take to end before nobody waits for it any more.
CANCEL_GRACE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with its thread, which is neither open nor running in a forked child.

    A plain one claims in the child to be running still, though its thread is not there, so that
    pydantic-ai would go on with connections that are the parent's. Nor may it be closed there: both
    processes hold one epoll instance, closing removes the wakeup socket from it, and the parent's
    loop would never wake again.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        super().__init__()
        self.closers: list[Callable[[], Awaitable[None]]] = []
        self.thread = threading.Thread(target=self._serve, name="celeriac-model-loop", daemon=True)

    def is_running(self) -> bool:
        return os.getpid() == self._pid and super().is_running()

    def is_closed(self) -> bool:
        return os.getpid() != self._pid or super().is_closed()

    def _serve(self) -> None:
        while True:
            try:
                self.run_forever()
                break
            except (SystemExit, KeyboardInterrupt) as error:
                # A task said sys.exit(), which asyncio lets end the loop; the others go on.
                logger.error("a task of the model loop raised %r", error)
        try:
            self.run_until_complete(self._wind_down())
        finally:
            self.close()

    async def _wind_down(self) -> None:
        tasks = {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
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
        await self.shutdown_asyncgens()


_lock = threading.Lock()
_running: _Loop | None = None
_inherited: list[_Loop] = []  # referenced for ever: collecting one would close its sockets


def submit(coroutine: Coroutine[Any, Any, T], *, timeout_seconds: float | None = None) -> Future[T]:
    """Start `coroutine` on the loop. Cancelling the future cancels it, and its HTTP request too.

    It sees the caller's context variables. After `timeout_seconds` it is cancelled, and the future
    fails with `TimeoutError` once it has ended. The future is cancelled if the loop is closed.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()
    with _lock:
        loop = _started()
        loop.call_soon_threadsafe(_start, loop, coroutine, timeout_seconds, future, context=context)
    return future


def run(coroutine: Coroutine[Any, Any, T], *, timeout_seconds: float | None = None) -> T:
    """The result of `coroutine`, run on the loop, or what it raises. For worker threads.

    After `timeout_seconds` it is cancelled and `TimeoutError` raised, `CANCEL_GRACE_SECONDS` later
    at the latest. It is cancelled as well if the waiting thread is interrupted by an exception.
    Raises `concurrent.futures.CancelledError` if the loop is closed meanwhile.
    """
    if _current() is not None:
        coroutine.close()
        raise RuntimeError("the model loop cannot wait for itself: await the coroutine instead")
    return wait(submit(coroutine, timeout_seconds=timeout_seconds), timeout_seconds)


def wait(future: Future[T], timeout_seconds: float | None) -> T:
    """Wait as `run` does for what was submitted with this timeout. Another thread may cancel the
    future meanwhile; then it raises `concurrent.futures.CancelledError` at once.
    """
    patience = None if timeout_seconds is None else timeout_seconds + CANCEL_GRACE_SECONDS
    try:
        return future.result(patience)
    finally:
        future.cancel()  # nothing happens to a future that is done


def at_close(closer: Callable[[], Awaitable[None]]) -> None:
    """Have `closer` awaited before the loop that runs the caller ends."""
    # Not `_running`: the loop may be closing already, with the caller about to be cancelled.
    loop = _current()
    if loop is None:
        raise RuntimeError("not on the model loop: start the coroutine with model_loop.run()")
    loop.closers.append(closer)


def close() -> None:
    """Cancel what runs on the loop, wait until it has ended, close connections, end the thread.

    Without a loop in this process it does nothing. The next call starts a new one.
    """
    global _running
    with _lock:
        loop, _running = _running, None
    if loop is None:
        return
    atexit.unregister(close)
    loop.call_soon_threadsafe(loop.stop)
    loop.thread.join(3 * CANCEL_GRACE_SECONDS)
    if loop.thread.is_alive():
        logger.error("the model loop does not end: something on it blocks its thread")


def _started() -> _Loop:
    global _running
    if _running is None:
        _running = _Loop()
        _running.thread.start()
        # A daemon thread is frozen at exit wherever it is, which would leave requests half sent.
        atexit.register(close)
    return _running


def _current() -> _Loop | None:
    """The loop that runs the caller, if it is one of ours."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop if isinstance(loop, _Loop) else None


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
        if future.cancelled():
            with suppress(RuntimeError):  # the loop is closed, and so the task has ended
                loop.call_soon_threadsafe(task.cancel)

    task.add_done_callback(settle)
    future.add_done_callback(cancel)


async def _within(coroutine: Coroutine[Any, Any, T], timeout_seconds: float | None) -> T:
    try:
        async with asyncio.timeout(timeout_seconds) as limit:
            return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        # asyncio would let it end the whole loop, and with it every other call of the process.
        raise RuntimeError(f"the coroutine raised {error!r}") from error
    except TimeoutError:
        if not limit.expired():
            raise
        name = getattr(coroutine, "__qualname__", "a coroutine")
        raise TimeoutError(
            f"{name} took longer than {timeout_seconds:g} s and was cancelled"
        ) from None


def _leave_the_parents_alone() -> None:
    """In a forked child: the loop's thread is not here, and another may have held the lock."""
    global _lock, _running
    _lock = threading.Lock()
    if _running is not None:
        _inherited.append(_running)
        _running = None


os.register_at_fork(after_in_child=_leave_the_parents_alone)
