"""One reader of a run: its history after a position, then what comes, up to the last event."""

import asyncio
from collections.abc import AsyncIterator

from celeriac.errors import DatabaseUnavailable, UnknownRun
from celeriac.ids import RunId, TenantId
from celeriac.reports import Event, to_json
from celeriac.sse import Frame, encode, to_data
from celeriac_api.streaming.hub import EVENTS_PER_READ, TROUBLE_SECONDS, Hub
from celeriac_api.streaming.text_in_progress import Shown
from celeriac_storage.following import Page


async def frames(
    hub: Hub, tenant_id: TenantId, run_id: RunId, after: int, first: Page, lasts_seconds: float
) -> AsyncIterator[bytes]:
    """The events after `after`, each once and in order, of which `first` is the first page; between
    them the model's text while it is written. It ends after the run's last event, or when
    `lasts_seconds` are over: then the reader comes back.
    """
    clock = asyncio.get_running_loop()
    ends_at = clock.time() + lasts_seconds
    seq, shown = after, Shown()
    page: Page | None = first
    with hub.feed(tenant_id, run_id) as feed:
        while clock.time() < ends_at:
            events = page.events if page else await feed.take(ends_at - clock.time())
            told: list[Frame] = []
            for event in events:
                if event.seq > seq:
                    told += [*shown.before(event), event_frame(event)]
                    seq = event.seq
            if page is not None and len(page.events) < EVENTS_PER_READ:
                feed.join(seq, page.position)
            if not feed.is_behind and (text := feed.text(seq)) is not None:
                told += shown.news(text)
            if told:
                yield b"".join(map(encode, told))
            is_over = page.is_last if page else bool(events) and events[-1].is_terminal
            if is_over:
                return
            try:
                page = await _page(hub, tenant_id, run_id, seq) if feed.is_behind else None
            except UnknownRun:
                return  # somebody has deleted it


def event_frame(event: Event) -> Frame:
    """An event as all readers get it; its `seq` is where a reader goes on from."""
    return Frame(to_data(to_json(event)), event.type, str(event.seq))


async def _page(hub: Hub, tenant_id: TenantId, run_id: RunId, seq: int) -> Page:
    while True:
        try:
            return await hub.read_page(tenant_id, run_id, seq)
        except DatabaseUnavailable:
            await asyncio.sleep(TROUBLE_SECONDS)
