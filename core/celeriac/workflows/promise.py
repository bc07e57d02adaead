"""What a workflow's code awaits: an entry of the log, a branch of the code, all or one of several.

Nothing here runs code or asks for anything; `flow.py` does. A promise is kept once and for ever,
and who listens to it learns of that in the order in which they began to listen.
"""

from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
Group = frozenset[int]  # numbers of entries, all of which must end before anything goes on


class First(NamedTuple):
    """Which of several ended first, counted from 0, and its result."""

    which: int
    result: Any


class Promise(Generic[T]):
    """Await it for its result, as often as you like; it raises what has gone wrong."""

    def __init__(self) -> None:
        self.is_kept = False
        self._listeners: list[Callable[[], None]] = []

    def __await__(self) -> Generator["Promise[Any]", None, T]:
        if not self.is_kept:
            yield self
        return self.result()

    def result(self) -> T:
        """Of a promise that is kept."""
        raise NotImplementedError

    def groups(self) -> Iterator[Group]:
        """What is waited for while this is: it cannot be kept before one of these has ended.

        Of a branch nothing: it waits for something itself.
        """
        raise NotImplementedError

    def entries(self) -> Group | None:
        """The open entries that it is all about; None if there is more to it."""
        return None

    def listen(self, listener: Callable[[], None]) -> None:
        if self.is_kept:
            listener()
        else:
            self._listeners.append(listener)

    def drop(self) -> None:
        """Nobody will await this one any more."""

    def _keep(self) -> None:
        self.is_kept = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


class EntryPromise(Promise[T]):
    """The end of one entry. `read` makes of the stored result what the code is given."""

    def __init__(self, number: int, read: Callable[[Any], T]) -> None:
        super().__init__()
        self.number = number
        self._read = read
        self._value: Any = None
        self._error: Exception | None = None

    def end(self, value: Any, error: Exception | None) -> None:
        self._value, self._error = value, error
        self._keep()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._read(self._value)

    def groups(self) -> Iterator[Group]:
        if not self.is_kept:
            yield frozenset((self.number,))

    def entries(self) -> Group | None:
        return frozenset() if self.is_kept else frozenset((self.number,))


class Branch(Promise[T]):
    """A coroutine of the workflow's code that goes on beside the others."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self.coroutine = coroutine
        self.is_dropped = False
        self._value: T | None = None
        self._error: Exception | None = None

    def end(self, value: T | None, error: Exception | None = None) -> None:
        self._value, self._error = value, error
        self._keep()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # of a branch that has ended it is a T

    def groups(self) -> Iterator[Group]:
        yield from ()

    def drop(self) -> None:
        if not self.is_kept and not self.is_dropped:
            self.is_dropped = True
            self.coroutine.close()


class AllOf(Promise[tuple[Any, ...]]):
    """Kept when every member is, also if some failed: then it raises the first of these errors, in
    the order of the members."""

    def __init__(self, members: Sequence[Promise[Any]]) -> None:
        super().__init__()
        self._members = members
        self._open = len(members)
        if not members:
            self._keep()
        for member in members:
            member.listen(self._member_is_kept)

    def _member_is_kept(self) -> None:
        self._open -= 1
        if not self._open:
            self._keep()

    def result(self) -> tuple[Any, ...]:
        return tuple([member.result() for member in self._members])

    def groups(self) -> Iterator[Group]:
        if (together := self.entries()) is not None:
            yield together
            return
        # What else is waited for comes first: entries alone would not let anything go on.
        for member in self._members:
            if not member.is_kept and member.entries() is None:
                yield from member.groups()

    def entries(self) -> Group | None:
        found: set[int] = set()
        for member in self._members:
            if (numbers := member.entries() if not member.is_kept else frozenset()) is None:
                return None
            found |= numbers
        return frozenset(found)

    def drop(self) -> None:
        for member in self._members:
            member.drop()


class FirstOf(Promise[First]):
    """Kept when one of its members is. The others are dropped: branches end where they are."""

    def __init__(self, members: Sequence[Promise[Any]]) -> None:
        super().__init__()
        self._members = members
        self._index: int | None = None
        for index, member in enumerate(members):
            member.listen(lambda index=index: self._member_is_kept(index))  # type: ignore[misc]  # mypy cannot infer a lambda's default

    def _member_is_kept(self, index: int) -> None:
        if self._index is not None:
            return
        self._index = index
        for at, member in enumerate(self._members):
            if at != index:
                member.drop()
        self._keep()

    def result(self) -> First:
        assert self._index is not None
        return First(self._index, self._members[self._index].result())

    def groups(self) -> Iterator[Group]:
        for member in self._members:
            yield from member.groups()

    def drop(self) -> None:
        for member in self._members:
            member.drop()
