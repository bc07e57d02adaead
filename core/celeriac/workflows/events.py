"""Which event goes to which part of a workflow's code that waits for one of its name."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from celeriac.workflows.promise import EventPromise, Promise


class Events:
    """The events of a run, as its code meets them.

    Each goes to one who waits for that name, in the order in which they asked. One that nobody
    waits for any more, because time was up, is kept for who waits next. `ask` asks for one more
    event of a name and returns the number of its entry.
    """

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self._open: dict[str, dict[int, None]] = {}  # by name, the entries that have not ended
        self._unread: dict[str, deque[Any]] = {}
        self._promises = 0

    def promise(self, name: str) -> EventPromise:
        self._promises += 1
        return EventPromise(self._promises, name, self._open.setdefault(name, {}))

    def await_all(self, waits: Promise[Any], everything: Iterable[Promise[Any]]) -> None:
        """Some code waits now, `waits` being one of all that is waited for: give it what is there
        already, and ask for what is not asked for yet."""
        for promise in list(waits.events()):
            unread = self._unread.get(promise.name)
            if unread and not waits.is_kept and not promise.is_kept:
                promise.settle(unread.popleft())
        for name in dict.fromkeys(promise.name for promise in waits.events()):
            for _ in range(len(_awaited(name, everything)) - len(self._open[name])):
                self._open[name][self._ask(name)] = None

    def tell(self, number: int, name: str, data: Any, everything: Iterable[Promise[Any]]) -> None:
        """The entry has ended."""
        self._open[name].pop(number, None)
        awaited = _awaited(name, everything)
        if awaited:
            min(awaited, key=lambda promise: promise.serial).settle(data)
        else:
            self._unread.setdefault(name, deque()).append(data)


def _awaited(name: str, everything: Iterable[Promise[Any]]) -> set[EventPromise]:
    found = (promise for waits in everything for promise in waits.events())
    return {promise for promise in found if promise.name == name}
