"""Who is signed in: a cookie that no script reads and no other site can have sent."""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated, cast
from urllib.parse import urlsplit

from fastapi import Depends, Request, Response
from starlette.exceptions import HTTPException

from celeriac_api.authentication import admitted
from celeriac_api.caller import Caller, peer_of, service_of
from celeriac_storage import console_sessions
from celeriac_storage.console_sessions import Session

COOKIE = "celeriac_session"
_LONGEST_COOKIE_CHARACTERS = 100


class SignedOut(Exception):
    """Nobody is signed in, or not any more."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    session: Session
    csrf: str  # what each form carries


def signed_in(request: Request) -> Caller:
    """The caller, who may ask now, as of a request with a token. Raises `SignedOut` or
    `RateLimited`."""
    cookie = request.cookies.get(COOKIE, "")
    session = None
    if 0 < len(cookie) <= _LONGEST_COOKIE_CHARACTERS:
        service, peer = service_of(request), peer_of(request)
        service.strangers.admit(cookie, peer)
        with service.ready().begin() as connection:
            session = console_sessions.find(connection, cookie)
        if session is None:
            service.strangers.note_refused(cookie, peer)
        else:
            service.strangers.note_good(cookie)
    if session is None:
        raise SignedOut
    request.state.signed_in = SignedIn(session, _csrf(cookie))
    caller = Caller(session.tenant_id, session.user_id, session.roles, session.token_id)
    return admitted(request, caller)


CurrentUser = Annotated[Caller, Depends(signed_in)]


def signed_in_session(request: Request) -> SignedIn | None:
    """Known once `signed_in` was asked."""
    return cast("SignedIn | None", getattr(request.state, "signed_in", None))


def keep_cookie(request: Request, response: Response, cookie: str) -> None:
    """Let the browser have it until it is closed; the session's own end is in the database."""
    response.set_cookie(
        COOKIE,
        cookie,
        path="/",
        httponly=True,
        samesite="strict",
        # Over plain HTTP, as on this machine, it would not be kept otherwise.
        secure=request.url.scheme == "https",
    )


def forget_cookie(response: Response) -> None:
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


def check_origin(request: Request) -> None:
    """Raise a 403 unless the form was sent from a page of ours, as the browser says (Fetch
    Metadata; RFC 6454, section 7)."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        is_ours = site == "same-origin"
    else:
        origin = request.headers.get("origin", "")
        is_ours = bool(origin) and urlsplit(origin).netloc == request.headers.get("host")
    if not is_ours:
        raise HTTPException(
            403,
            "This form did not come from a page of this console, so nothing was done. If a proxy "
            "stands before it, it has to pass the Host header on.",
        )


def check_csrf(request: Request, given: str) -> None:
    """Raise a 403 unless the form carries what only this session's pages know."""
    known = signed_in_session(request)
    if known is None or not hmac.compare_digest(known.csrf.encode(), given.encode()):
        raise HTTPException(
            403,
            "This form is not of your session, so nothing was done: go back, load the page again, "
            "and send it once more.",
        )


def _csrf(cookie: str) -> str:
    return hmac.new(cookie.encode(), b"celeriac console form", hashlib.sha256).hexdigest()
