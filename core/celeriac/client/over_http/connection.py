"""How the API is reached: what both clients over HTTP set, and how they read what comes back."""

import json
from collections.abc import Generator
from typing import Any

import httpx2
from pydantic import SecretStr

from celeriac.client.over_http.request import Request
from celeriac.client.over_http.story import SILENCE_SECONDS
from celeriac.client.over_http.tries import Tries
from celeriac.errors import InvalidInput, UnexpectedAnswer
from celeriac.sse import to_data

CONNECT_SECONDS = 5.0


def checked_address(url: str) -> str:
    """The service's address, without a slash at its end. Raises `InvalidInput`."""
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError) as error:
        raise InvalidInput(f"the service's URL cannot be read: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInput(
            "the service's URL must have the form https://host:port, perhaps with a path that a "
            "proxy has put before the API"
        )
    if parsed.userinfo or parsed.query or parsed.fragment:
        # Not shown: it may hold a password, and would be in every message.
        raise InvalidInput("the service's URL may have no login, query or fragment")
    return url.rstrip("/")


class Bearer(httpx2.Auth):
    """Puts the token into each request. What shows this object, shows no token."""

    def __init__(self, token: str | None) -> None:
        """Raises `InvalidInput`, without the token, for one that is none."""
        if token is None:
            raise InvalidInput("the service needs a token: `celeriac token create` makes one")
        if not token or not all("!" <= character <= "~" for character in token):
            raise InvalidInput(
                "this is no token: one is a word of visible ASCII characters, as `celeriac token` "
                "prints it"
            )
        self._header = SecretStr(f"Bearer {token}")

    def auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = self._header.get_secret_value()
        yield request


def settings(token: str | None, timeout_seconds: float) -> dict[str, Any]:
    """The arguments of either of httpx's clients.

    Redirects are not followed: the token is for the service at this address, and for nobody that it
    may point to.
    """
    return {
        "auth": Bearer(token),
        "headers": {"Accept": "application/json"},
        "timeout": httpx2.Timeout(timeout_seconds, connect=CONNECT_SECONDS),
        "follow_redirects": False,
    }


def arguments(request: Request) -> dict[str, Any]:
    """Those of the request, for either client's `build_request`."""
    sent: dict[str, str] = {}
    if request.key is not None:
        sent["Idempotency-Key"] = request.key
    if request.last_event_id is not None:
        sent["Last-Event-ID"] = str(request.last_event_id)
    content = None
    if request.body is not None:
        sent["Content-Type"] = "application/json"
        content = to_data(dict(request.body)).encode()
    query = {name: value for name, value in request.query.items() if value is not None}
    return {"params": query, "headers": sent, "content": content}


def stream_timeout(timeout_seconds: float) -> httpx2.Timeout:
    """Of a stream: what is silent for longer than a heartbeat takes is gone."""
    return httpx2.Timeout(timeout_seconds, connect=CONNECT_SECONDS, read=SILENCE_SECONDS)


def told(request: Request, response: httpx2.Response) -> Any:
    """What a request was answered with. Raises `UnexpectedAnswer` for what is no JSON."""
    try:
        return json.loads(response.content)
    except ValueError as error:
        raise UnexpectedAnswer(
            f"{request} was answered with {_excerpt(response)}, which is no JSON: is this the "
            "address of the API?"
        ) from error


def _told_of_error(response: httpx2.Response) -> object:
    """What an error says: a problem as JSON; else its text, with where a redirect leads."""
    try:
        return json.loads(response.content)
    except ValueError:
        where = response.headers.get("location")
        if where is not None:
            return f"a redirect to {where}, which is not followed; give that as the URL if it is"
        return response.text


def check_stream(request: Request, response: httpx2.Response) -> None:
    """Raise `UnexpectedAnswer` unless this is a stream of events."""
    kind = response.headers.get("content-type", "")
    if not kind.startswith("text/event-stream"):
        raise UnexpectedAnswer(
            f"{request} was answered with {kind or 'something of no type'} instead of a stream of "
            "events: is this the address of the API?"
        )


def refused(tries: Tries, response: httpx2.Response) -> float:
    """How long to wait after this answer, which is read whole, before the next try, in seconds.
    Raises the error that it tells of, if there is to be none."""
    return tries.refused(
        response.status_code, _told_of_error(response), response.headers.get("retry-after")
    )


def _excerpt(response: httpx2.Response) -> str:
    return repr(response.text[:100])
