"""`/v1/runs/{run_id}/events`: a run's events as they come, as server-sent events."""

from contextlib import suppress
from typing import Annotated, cast

import anyio.to_thread
from fastapi import APIRouter, Header, Query, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from celeriac_api.authorization import visible_run
from celeriac_api.caller import caller_of
from celeriac_api.models.responses import PROBLEMS
from celeriac_api.streaming.hub import Hub
from celeriac_api.streaming.reader import frames

HEARTBEAT_SECONDS = 15.0  # proxies cut what is silent for 30 to 60
STUCK_SECONDS = 60.0  # a reader that takes nothing for so long is given up; it comes back
LASTS_SECONDS = 900.0
"""Then a reader comes back, and whether it may read is looked at again."""
_GREATEST_SEQ = 2**31 - 1

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.get(
    "/{run_id}/events",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": "The events after the position, and those to come up to the run's last. "
            "Frames with an `id` are events; `text.delta` and `superseded` have none",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": "id: 1\nevent: run.created\n"
                    'data: {"run_id":"r01","seq":1,"type":"run.created",'
                    '"at":"2026-11-30T08:00:00Z","data":{"agent":"clerk","thread_id":"t01"}}\n\n',
                }
            },
        },
        204: {"description": "The run has ended, and there is nothing after the position"},
        **PROBLEMS,
    },
)
async def follow_events(
    request: Request,
    run_id: str,
    after: Annotated[
        int, Query(ge=0, le=_GREATEST_SEQ, description="Only those with a greater `seq`.")
    ] = 0,
    lasts_seconds: Annotated[
        float | None,
        Query(gt=0, le=LASTS_SECONDS, description="When the stream is to end at the latest."),
    ] = None,
    last_event_id: Annotated[
        str | None,
        Header(description="The same, as browsers send it when they come back; goes first."),
    ] = None,
) -> Response:
    """Follow a run: its events as server-sent events, each once and in order, and between them the
    text of a model that is being written."""
    run = await anyio.to_thread.run_sync(visible_run, request, run_id)
    seq = after if not last_event_id else _position(last_event_id)
    hub, tenant_id = hub_of(request), caller_of(request).tenant_id
    page = await hub.read_page(tenant_id, run, seq)
    if seq > page.position.last_event_seq:
        raise HTTPException(
            400,
            f"run {run} has {page.position.last_event_seq} events, so nobody can have read up to "
            f"{seq}; leave out Last-Event-ID and `after` to begin with the first",
        )
    if page.is_last and not page.events:
        return Response(status_code=204)  # which tells a browser not to come back
    return _Stream(
        frames(hub, tenant_id, run, seq, page, lasts_seconds or LASTS_SECONDS),
        ping=HEARTBEAT_SECONDS,
        ping_message_factory=lambda: ServerSentEvent(comment="", sep="\n"),
        send_timeout=STUCK_SECONDS,
    )


def hub_of(request: Request) -> Hub:
    """The one of this process."""
    return cast(Hub, request.app.state.hub)


def _position(last_event_id: str) -> int:
    if last_event_id.isascii() and last_event_id.isdigit():
        seq = int(last_event_id[:11])
        if seq <= _GREATEST_SEQ:
            return seq
    raise HTTPException(
        400,
        f"Last-Event-ID is {last_event_id[:80]!r}, which is no event's id: those are the numbers "
        "that the stream's frames have as `id`",
    )


class _Stream(EventSourceResponse):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Taken nothing for too long: closing the connection is all there is to do.
        with suppress(SendTimeoutError):
            await super().__call__(scope, receive, send)
