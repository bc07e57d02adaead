"""A bound on how many threads do our own work at once."""

from queue import SimpleQueue
from types import TracebackType


class Places:
    """So many places; `with places:` takes one, and waits if there is none.

    Like a semaphore, but waiting and waking happen in C: every step passes here several times, with
    dozens of threads in line.
    """

    def __init__(self, count: int) -> None:
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(count):
            self._free.put(None)

    def __enter__(self) -> None:
        self._free.get()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._free.put(None)
