"""Signing in, with a token that is pasted, and out."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from celeriac.errors import RateLimited, Unauthenticated
from celeriac_api.authentication import owner_of_token
from celeriac_api.caller import peer_of, service_of
from celeriac_api.console.forms import PostedForm, read_fields
from celeriac_api.console.pages import PageRoute, render, see
from celeriac_api.console.sessions import (
    check_origin,
    forget_cookie,
    keep_cookie,
    signed_in_session,
)
from celeriac_storage import console_sessions

router = APIRouter(route_class=PageRoute)

HOME = "/runs"
LONGEST_NEXT_CHARACTERS = 2000


@router.get("/")
async def home() -> Response:
    """Where the console begins."""
    return see(HOME)


@router.get("/sign-in")
def sign_in_page(request: Request, after: Annotated[str, Query(alias="next")] = HOME) -> Response:
    return render(request, "sign_in.html", next=_own_path(after), problem=None)


async def _sign_in_form(request: Request) -> dict[str, str]:
    # There is no session yet whose token it could carry: without this, somebody could be signed in
    # unawares as another.
    check_origin(request)
    return await read_fields(request)


@router.post("/sign-in")
def sign_in(
    request: Request, fields: Annotated[dict[str, str], Depends(_sign_in_form)]
) -> Response:
    """Open a session for whoever shows a good token."""
    after = _own_path(fields.get("next", HOME))
    try:
        cookie = _opened(request, fields.get("token", "").strip())
    except (Unauthenticated, RateLimited) as error:
        status = 401 if isinstance(error, Unauthenticated) else 429
        return render(request, "sign_in.html", status, next=after, problem=str(error))
    response = see(after)
    keep_cookie(request, response, cookie)
    return response


@router.post("/sign-out")
def sign_out(request: Request, form: PostedForm) -> Response:
    """End the session, wherever its cookie may be."""
    known = signed_in_session(request)
    assert known is not None, "the form is somebody's"
    with service_of(request).tenant(form.caller.tenant_id).begin() as connection:
        console_sessions.end(connection, known.session)
    response = see("/sign-in")
    forget_cookie(response)
    return response


def _opened(request: Request, token: str) -> str:
    """The cookie of a new session. Raises `Unauthenticated` or `RateLimited`."""
    service = service_of(request)
    if token.startswith(console_sessions.ONE_TIME_SCHEME):
        peer = peer_of(request)
        service.strangers.admit(token, peer)
        with service.ready().begin() as connection:
            cookie = console_sessions.open_with_one_time_token(connection, token)
        if cookie is None:
            service.strangers.note_refused(token, peer)
            raise Unauthenticated(
                "this one-time token opens nothing: it was used, is older than a day, or is "
                "mistyped. The next `celeriac up` prints another, and a token of the API does as "
                "well"
            )
        return cookie
    caller = owner_of_token(request, token)
    with service.tenant(caller.tenant_id).begin() as connection:
        return console_sessions.open_with_token(
            connection,
            caller.tenant_id,
            caller.user_id,
            caller.roles,
            caller.token_id,
            until=caller.expires_at,
        )


def _own_path(path: str) -> str:
    """`path` if it leads to a page of ours, else the first one: no link may lead through the
    sign-in to somewhere else."""
    is_ours = (
        path.startswith("/")
        and not path.startswith("//")
        and "\\" not in path
        and path.isascii()
        and path.isprintable()
        and len(path) <= LONGEST_NEXT_CHARACTERS
    )
    return path if is_ours else HOME
