"""Pages as responses: their headers, and what stands on one when something goes wrong."""

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from sqlalchemy.exc import DBAPIError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from celeriac.errors import CeleriacError
from celeriac_api import problems
from celeriac_api.console.sessions import SignedOut, signed_in_session
from celeriac_api.console.templates import environment

logger = logging.getLogger(__name__)

PAGE_HEADERS: Mapping[str, str] = {
    # Nothing of another origin, and no script or style but our files: if ever a value were not
    # escaped, it still could not do anything.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    # With `no-referrer`, browsers send `Origin: null` with our own forms (Fetch, section 3.1).
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_IS_PARTIAL = "hx-request"  # htmx asks for a part of the page that is there


def render(request: Request, template: str, status_code: int = 200, **facts: Any) -> HTMLResponse:
    """The page. Templates know who is signed in (`session`, or None), `csrf`, and `fresh_key()`
    for each form."""
    known = signed_in_session(request)
    text = environment().get_template(template).render(
        session=known and known.session,
        csrf=known and known.csrf,
        fresh_key=lambda: str(uuid4()),
        path=request.url.path,
        here=_here(request),
        **facts,
    )  # fmt: skip
    return HTMLResponse(text, status_code, PAGE_HEADERS)


class PageRoute(APIRoute):
    """An endpoint for a browser: its errors are pages as well."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                return await handle(request)
            except SignedOut:
                return _to_sign_in(request)
            except CeleriacError as error:
                kind, detail = await run_in_threadpool(problems.settle, request, error)
            except RequestValidationError as error:
                told = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
                kind, detail = problems.INVALID_REQUEST, told
            except HTTPException as error:
                kind, detail = problems.kind_of_status(error.status_code), str(error.detail)
            except Exception as error:
                away = problems.out_of_time(error) if isinstance(error, DBAPIError) else None
                if away is None:
                    logger.exception("%s %s failed", request.method, request.url.path)
                kind = problems.UNEXPECTED if away is None else problems.kind_of(away)
                detail = kind.detail or str(away)
            return problem_page(request, kind, detail)

        return handle_page


def problem_page(request: Request, kind: problems.Kind, detail: str) -> Response:
    """What went wrong, for a person."""
    page = render(request, "problem.html", kind.status, title=kind.title, detail=detail)
    page.headers.update({name: each for name, each in (kind.headers or {}).items()
                         if name != "WWW-Authenticate"})  # fmt: skip
    return page


def see(path: str) -> Response:
    """After a form: go there, and reloading does not send the form again."""
    return RedirectResponse(path, 303, PAGE_HEADERS)


def _to_sign_in(request: Request) -> Response:
    if _IS_PARTIAL in request.headers:
        # The page that is there is somebody's who is not signed in any more.
        return Response(status_code=204, headers={"HX-Redirect": "/sign-in"})
    if request.method != "GET":
        return see("/sign-in")
    if request.headers.get("sec-fetch-site") == "cross-site":
        # A link from elsewhere, such as a chat, comes without a SameSite=Strict cookie though there
        # may be one. Asked for again by our own page, it comes with it.
        return HTMLResponse(
            environment().get_template("again.html").render(here=_here(request)),
            headers=PAGE_HEADERS,
        )
    return see("/sign-in?" + urlencode({"next": _here(request)}))


def _here(request: Request) -> str:
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")
