"""What a workflow's code awaits: the end of an entry, an event, a branch of the code, all or one of
several.

Nothing here runs code or asks for anything; `flow.py` does. A promise is kept once and for ever,
and its listeners learn of that in the order in which they began to listen.
"""

from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Sequence
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
        """What to wait for while it is not kept: it cannot be, before one of these has ended.

        Of a branch nothing, since that waits for something itself.
        """
        raise NotImplementedError

    def entries(self) -> Group | None:
        """The open entries that it waits for, all of them; None if there is more to it."""
        return None

    def events(self) -> Iterator["EventPromise"]:
        """The events that are waited for while this is."""
        yield from ()

    def listen(self, listener: Callable[[], None]) -> None:
        if self.is_kept:
            listener()
        else:
            self._listeners.append(listener)

    def _keep(self) -> None:
        self.is_kept = True
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()


class Settled(Promise[T]):
    """One that is kept with a value or an error, by `settle`."""

    def __init__(self) -> None:
        super().__init__()
        self._value: Any = None
        self._error: Exception | None = None

    def settle(self, value: Any, error: Exception | None = None) -> None:
        self._value, self._error = value, error
        self._keep()

    def result(self) -> T:
        if self._error is not None:
            # Without the traceback of the await before, to which this one would be added.
            raise self._error.with_traceback(None)
        return self._value  # type: ignore[no-any-return]  # it is what the code returned


class EntryPromise(Settled[T]):
    """The end of one entry. `read` makes of the stored result what the code is given."""

    def __init__(self, number: int, read: Callable[[Any], T]) -> None:
        super().__init__()
        self.number = number
        self._read = read

    def result(self) -> T:
        return self._read(super().result())

    def groups(self) -> Iterator[Group]:
        yield frozenset((self.number,))

    def entries(self) -> Group | None:
        return frozenset((self.number,))


class EventPromise(Settled[Any]):
    """The next event of a name that nobody else who waits was given.

    It has no entry of its own: one that nobody awaits any more takes no event from the others.
    `open_entries` are those of the name, any of which may bring the event.
    """

    def __init__(self, serial: int, name: str, open_entries: Collection[int]) -> None:
        super().__init__()
        self.serial = serial
        self.name = name
        self._open_entries = open_entries

    def groups(self) -> Iterator[Group]:
        for number in self._open_entries:
            yield frozenset((number,))

    def events(self) -> Iterator["EventPromise"]:
        if not self.is_kept:
            yield self


class Branch(Settled[T]):
    """A coroutine of the workflow's code, which goes on beside the others."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self.coroutine = coroutine
        self.is_dropped = False
        self.parent: Branch[Any] | None = None
        self.begun: dict[Branch[Any], None] = {}  # what it is the parent of, in that order

    def groups(self) -> Iterator[Group]:
        yield from ()


class AllOf(Promise[tuple[Any, ...]]):
    """Kept when every member is, also if some failed: then it raises the first of these errors, in
    the order of the members, and calls `fails` with all of them."""

    def __init__(
        self, members: Sequence[Promise[Any]], fails: Callable[[Sequence[Exception]], None]
    ) -> None:
        super().__init__()
        self._members = members
        self._fails = fails
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
        results: list[Any] = []
        errors: list[Exception] = []
        for member in self._members:
            try:
                results.append(member.result())
            except Exception as error:  # noqa: BLE001 - the code's
                errors.append(error)
        if errors:
            self._fails(errors)
            raise errors[0]
        return tuple(results)

    def groups(self) -> Iterator[Group]:
        together = self.entries()
        if together is not None:
            yield together
            return
        # What is more than entries comes first: the entries alone would let nothing go on.
        for member in self._members:
            if not member.is_kept and member.entries() is None:
                yield from member.groups()

    def entries(self) -> Group | None:
        found: set[int] = set()
        for member in self._members:
            if not member.is_kept:
                numbers = member.entries()
                if numbers is None:
                    return None
                found |= numbers
        return frozenset(found)

    def events(self) -> Iterator[EventPromise]:
        for member in self._members:
            yield from member.events()


class Within(Promise[T]):
    """The result of the first of two, of which the second is a timer."""

    def __init__(self, first: "FirstOf", limit_seconds: float) -> None:
        super().__init__()
        self._first = first
        self._limit_seconds = limit_seconds
        first.listen(self._keep)

    def result(self) -> T:
        which, result = self._first.result()
        if which == 1:
            raise TimeoutError(f"it has not ended within {self._limit_seconds:g} s")
        return result  # type: ignore[no-any-return]  # it is that of what was awaited

    def groups(self) -> Iterator[Group]:
        return self._first.groups()

    def events(self) -> Iterator[EventPromise]:
        return self._first.events()


class FirstOf(Promise[First]):
    """Kept when one of its members is. `drop` is then called with each of the others."""

    def __init__(
        self, members: Sequence[Promise[Any]], drop: Callable[[Promise[Any]], None]
    ) -> None:
        super().__init__()
        self._members = members
        self._drop = drop
        self._which: int | None = None
        for at, member in enumerate(members):
            member.listen(lambda at=at: self._member_is_kept(at))  # type: ignore[misc]  # mypy cannot infer the type of a lambda with a default

    def _member_is_kept(self, at: int) -> None:
        if self._which is not None:
            return
        self._which = at
        for other in self._members:
            if other is not self._members[at]:
                self._drop(other)
        self._keep()

    def result(self) -> First:
        assert self._which is not None
        return First(self._which, self._members[self._which].result())

    def groups(self) -> Iterator[Group]:
        for member in self._members:
            yield from member.groups()

    def events(self) -> Iterator[EventPromise]:
        if not self.is_kept:
            for member in self._members:
                yield from member.events()
