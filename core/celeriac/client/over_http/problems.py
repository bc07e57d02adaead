"""Problem details of the API (RFC 9457) as the errors that a client of the database raises."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from celeriac import errors
from celeriac.errors import CeleriacError, UnexpectedAnswer

URN = "urn:celeriac:problem:"

_BY_STATUS: Mapping[int, type[CeleriacError]] = {
    400: errors.InvalidInput,
    401: errors.Unauthenticated,
    403: errors.NotAllowed,
    404: errors.InvalidInput,
    409: errors.Conflict,
    410: errors.Conflict,
    413: errors.InvalidInput,
    422: errors.InvalidInput,
    429: errors.RateLimited,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
"""What a problem is whose type is not known here, as a newer service may send it."""

LONGEST_SHOWN_CHARACTERS = 200


def error_of(request: object, status: int, told: Any) -> CeleriacError:
    """The error that the answer `told` with this status stands for. `told` is its JSON, or its text
    if it is none: then something answers that is not the API, a proxy say."""
    if not isinstance(told, dict) or not isinstance(told.get("type"), str):
        is_away = status in (502, 503, 504)
        kind: type[CeleriacError] = errors.Unavailable if is_away else UnexpectedAnswer
        shown = str(told)[:LONGEST_SHOWN_CHARACTERS]
        return kind(f"{request} was answered by no problem of the API, but with {status}: {shown}")
    type_, detail = told["type"], told.get("detail")
    message = detail if isinstance(detail, str) and detail else str(told.get("title", type_))
    known = _by_name().get(type_.removeprefix(URN)) if type_.startswith(URN) else None
    if known is not None:
        return known(message)
    kind = _BY_STATUS.get(status, UnexpectedAnswer)
    return kind(f"{message} ({status}, {type_})")


def name_of(error: type[CeleriacError]) -> str:
    """The end of the `type` of this error's problem."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", error.__name__).lower()


def _by_name() -> dict[str, type[CeleriacError]]:
    return {name_of(each): each for each in _below(CeleriacError)}


def _below(error: type[CeleriacError]) -> Iterator[type[CeleriacError]]:
    for each in error.__subclasses__():
        # Those of the module alone: what a user's program derives has its own constructor.
        if each.__module__ == errors.__name__:
            yield each
            yield from _below(each)
