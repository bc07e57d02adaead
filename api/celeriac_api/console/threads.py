"""Threads as conversations: who has which, what was said in one, and saying something there."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from celeriac.errors import CeleriacError, RateLimited, RoleMissing, Unavailable, UnknownThread
from celeriac.ids import RunId
from celeriac.reports import Thread
from celeriac_api import problems
from celeriac_api import runs as runs_api
from celeriac_api import threads as api
from celeriac_api.authorization import sees_all
from celeriac_api.caller import Caller, service_of
from celeriac_api.console.forms import Form, PostedForm, body_of
from celeriac_api.console.pages import PageRoute, render, see
from celeriac_api.console.sessions import CurrentUser
from celeriac_api.console.words import waiting_for
from celeriac_api.models.runs import StartRun
from celeriac_api.pages import Cursor, cursor_after, cut, place_of
from celeriac_storage import conversations

router = APIRouter(prefix="/threads", route_class=PageRoute)

THREADS_SHOWN = 50
EXCHANGES_SHOWN = 20
PREVIEW_CHARACTERS = 200

Whose = Annotated[str, Query(max_length=128, pattern=r"^[A-Za-z0-9._@-]*$")]


@router.get("", name="list_threads")
def threads_page(
    request: Request, caller: CurrentUser, user_id: Whose = "", cursor: Cursor = None
) -> Response:
    """Of the caller, or for an operator of everybody; an empty filter is none."""
    found, next_cursor = api.page_of_threads(
        request, caller, user_id or None, THREADS_SHOWN, cursor or None
    )
    latest = [each.last_run.run_id for each in found if each.last_run is not None]
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        previews = conversations.inputs_of(connection, latest, PREVIEW_CHARACTERS)
    return render(
        request,
        "threads.html",
        threads=found,
        previews=previews,
        user_id=user_id,
        sees_all=sees_all(caller, "list_threads"),
        is_first=not cursor,
        next_cursor=next_cursor,
    )


@router.get("/{thread_id}", name="show_thread")
def thread_page(
    request: Request, thread_id: str, caller: CurrentUser, cursor: Cursor = None
) -> Response:
    thread = api.seen_thread(request, caller, thread_id)
    return _page(request, caller, thread, cursor or None)


@router.post("/{thread_id}/messages", name="start_run")
def say(request: Request, thread_id: str, form: PostedForm) -> Response:
    """Tell the thread's run that goes on, or start another one; if that is refused, the page again,
    with what was typed."""
    thread = api.seen_thread(request, form.caller, thread_id)
    try:
        body = body_of(
            StartRun,
            agent=form.text("agent"),
            input=form.text("text"),
            thread_id=thread.thread_id,
            user_id=thread.user_id,
            on_busy="say",
        )
        runs_api.start_run(body, form.order(body))
    except (RateLimited, Unavailable, RoleMissing, UnknownThread):
        raise  # there is no page to show again, or not just now
    except CeleriacError as error:
        kind, detail = problems.settle(request, error)
        return _page(request, form.caller, thread, None, kind=kind, problem=detail, form=form)
    return see(f"/threads/{thread.thread_id}#latest")


def _page(
    request: Request,
    caller: Caller,
    thread: Thread,
    cursor: str | None,
    *,
    kind: problems.Kind | None = None,
    problem: str | None = None,
    form: Form | None = None,
) -> Response:
    place = place_of(cursor)
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        latest_first = conversations.read_exchanges(
            connection,
            caller.tenant_id,
            thread.thread_id,
            before=None if place is None else (place[0], RunId(place[1])),
            limit=EXCHANGES_SHOWN + 1,
        )[::-1]
    shown, has_more = cut(latest_first, EXCHANGES_SHOWN)
    first = shown[-1].run if has_more else None
    agents = dict.fromkeys(exchange.run.agent for exchange in shown if not exchange.is_handoff)
    return render(
        request,
        "thread.html",
        kind.status if kind is not None else 200,
        thread=thread,
        exchanges=[
            (exchange, None if exchange.wait is None else waiting_for(exchange.run, exchange.wait))
            for exchange in reversed(shown)
        ],
        is_latest=cursor is None,
        is_active=any(exchange.wait is not None for exchange in shown),
        earlier=None if first is None else cursor_after(first.created_at, first.run_id),
        agents=list(agents),
        problem=problem,
        problem_title=kind.title if kind is not None else None,
        typed={} if form is None else form.texts(),
    )
