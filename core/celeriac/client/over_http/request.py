"""What is sent to the API, as data."""

import secrets
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput, UnexpectedAnswer

Answer = TypeVar("Answer")
Item = TypeVar("Item")

Query: TypeAlias = Mapping[str, str | int | float | None]
"""None is not sent."""

LONGEST_PAGE = 200
"""Rows that the API gives at once."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Made before it is sent for the first time, so that each further try is the same
    request, with the same idempotency key."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    query: Query = field(default_factory=dict)
    body: Mapping[str, JsonValue] | None = None
    key: str | None = None  # of what changes something
    last_event_id: int | None = None  # of a stream that is gone on with
    if_lost: str = ""  # what to do if nobody knows whether it was done

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


Flow: TypeAlias = Generator[Request, Any, Answer]
"""Yields requests, is sent the JSON that each is answered with, and returns what came of it."""


def get(path: str, **query: str | int | float | None) -> Request:
    """A look, which may be had as often as one likes."""
    return Request("GET", path, query)


def post(
    path: str,
    body: Mapping[str, JsonValue] | None = None,
    *,
    key: str | None = None,
    if_lost: str = "",
) -> Request:
    """A request that acts, once however often it is sent; under the asker's own key, if there is
    one."""
    return Request("POST", path, {}, body, key or _new_key(), if_lost=if_lost)


def put(path: str, body: Mapping[str, JsonValue]) -> Request:
    """The same, for what replaces what was there."""
    return Request("PUT", path, {}, body, _new_key())


def delete(path: str, **query: str | None) -> Request:
    """The same, for what ends something."""
    return Request("DELETE", path, query, key=_new_key())


def one(request: Request, read: Callable[[Any], Answer]) -> Flow[Answer]:
    """A flow of one request."""
    return read((yield request))


def go_on(flow: Flow[Any], request: Request, told: object) -> Request:
    """The flow's next request after `request` was answered. Raises `StopIteration`, which has what
    came of the flow, after the last one, and `UnexpectedAnswer` for what the flow cannot read."""
    try:
        return flow.send(told)
    except (KeyError, TypeError, ValueError) as error:
        raise UnexpectedAnswer(
            f"{request} was answered by something that this version cannot read "
            f"({type(error).__name__}: {error})"
        ) from error


def pages(
    path: str, name: str, read: Callable[[Any], Item], limit: int, query: Query
) -> Flow[list[Item]]:
    """At most `limit` rows of a list, page by page; `name` is the list's in the answer."""
    found: list[Item] = []
    cursor: str | None = None
    while len(found) < limit:
        at_once = min(limit - len(found), LONGEST_PAGE)
        page = yield Request("GET", path, {**query, "limit": at_once, "cursor": cursor})
        found += map(read, page[name])
        cursor = page.get("next_cursor")
        if cursor is None:
            break
    return found


def refuse_speaker(by: str | None) -> None:
    """Raise `InvalidInput` if somebody is named as who says so: over HTTP the token tells that."""
    if by is not None:
        raise InvalidInput(
            f"{by} cannot be named as who says so: over HTTP that is the user whose token it is. "
            f"Leave it out, and use a token of {by}"
        )


def _new_key() -> str:
    return secrets.token_hex(16)
