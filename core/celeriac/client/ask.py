"""What a client asks for, written down once for all that can answer it.

A function such as `steering.cancel` checks the words that it is given and returns an `Ask`: how the
thing is done in the database, and what has to be sent to the HTTP API for it. Clients are made of
these functions: `cancel = Asked(steering.cancel)` is a method that asks and returns the answer,
with the function's own signature and docstring; `cancel = AskedAsync(steering.cancel)` one to be
awaited.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Generic, ParamSpec, Protocol, TypeVar, overload

from celeriac.client.over_http.request import Flow

if TYPE_CHECKING:
    from celeriac.client.database import DatabaseDesk

Answer = TypeVar("Answer")
Words = ParamSpec("Words")


@dataclass(frozen=True, slots=True)
class Ask(Generic[Answer]):
    """One thing that is asked for. Nothing has happened yet."""

    in_database: Callable[["DatabaseDesk"], Answer]
    over_http: Callable[[], Flow[Answer]]


class Answers(Protocol):
    """A client that returns answers."""

    def _answer(self, ask: Ask[Answer]) -> Answer: ...


class AnswersLater(Protocol):
    """A client that is awaited."""

    async def _answer(self, ask: Ask[Answer]) -> Answer: ...


class Asked(Generic[Words, Answer]):
    """A method of a client: it asks for what `describe` says."""

    def __init__(self, describe: Callable[Words, Ask[Answer]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, client: None, owner: object) -> Callable[Words, Ask[Answer]]: ...

    @overload
    def __get__(self, client: Answers, owner: object) -> Callable[Words, Answer]: ...

    def __get__(
        self, client: Answers | None, owner: object
    ) -> Callable[Words, Ask[Answer]] | Callable[Words, Answer]:
        if client is None:
            return self._describe

        @wraps(self._describe)
        def ask(*args: Words.args, **kwargs: Words.kwargs) -> Answer:
            return client._answer(self._describe(*args, **kwargs))

        return ask


class AskedAsync(Generic[Words, Answer]):
    """The same, to be awaited."""

    def __init__(self, describe: Callable[Words, Ask[Answer]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, client: None, owner: object) -> Callable[Words, Ask[Answer]]: ...

    @overload
    def __get__(
        self, client: AnswersLater, owner: object
    ) -> Callable[Words, Awaitable[Answer]]: ...

    def __get__(
        self, client: AnswersLater | None, owner: object
    ) -> Callable[Words, Ask[Answer]] | Callable[Words, Awaitable[Answer]]:
        if client is None:
            return self._describe

        @wraps(self._describe)
        async def ask(*args: Words.args, **kwargs: Words.kwargs) -> Answer:
            return await client._answer(self._describe(*args, **kwargs))

        return ask
