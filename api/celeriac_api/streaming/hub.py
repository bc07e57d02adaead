"""All readers of this process: one look at Postgres and one connection to Redis serve all of them.

A reader holds a position and a short queue. It is given what comes after its position, in order;
whatever would leave a gap, such as a queue that it has let overflow, sends it to Postgres first. So
nothing can be missed and nobody waits for a slow one, who holds no connection either.

All of this runs on the event loop; only the statements run in threads, a few at a time.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from itertools import groupby

import anyio
import anyio.to_thread
from redis.exceptions import RedisError

from celeriac.errors import DatabaseUnavailable
from celeriac.ids import RunId, TenantId
from celeriac.reports import Event
from celeriac_api.streaming.ear import PIECES_PER_READ, Ear
from celeriac_api.streaming.text_in_progress import TextInProgress
from celeriac_storage import following
from celeriac_storage.following import Page
from celeriac_storage.reading import Position
from celeriac_storage.tenancy import TenantDatabase

logger = logging.getLogger(__name__)

GATHER_SECONDS = 0.005
"""After a look, runs that are woken within this time are looked at together."""
POLL_SECONDS = 1.0  # all runs are looked at so often, whatever Redis says
DEAF_POLL_SECONDS = 0.25  # and without Redis
POLLED_AT_ONCE = 250
"""Runs of one look of the poll: some 5 ms of a core, which those that are woken may have to wait
for. Where there are more, the poll is spread over its period."""
TROUBLE_SECONDS = 0.5
QUEUED_EVENTS = 256  # that a reader may be behind before it is sent to Postgres
EVENTS_PER_READ = 200  # of one run
PAGES_AT_ONCE = 4  # needs as many connections
LOOKS_AT_ONCE = 2  # the same: one where it rings, and one of the poll


Look = Callable[[], Awaitable[None]]


class Feed:
    """What one reader of a run is given."""

    def __init__(self, hub: "Hub", tenant_id: TenantId, run_id: RunId) -> None:
        self.is_behind = True  # read pages until `join`
        self.tenant_id = tenant_id
        self.run_id = run_id
        self._hub = hub
        self._watch: _Watch | None = None
        self._queue: list[Event] = []
        self._is_news = asyncio.Event()

    def join(self, seq: int, position: Position) -> None:
        """Having read all up to `seq`, when the run stood at `position`, hear of the rest."""
        if self._watch is None:
            self._watch = self._hub._join(self, seq, position)
        self._queue = [event for event in self._queue if event.seq > seq]
        first = self._queue[0].seq if self._queue else self._watch.head + 1
        self.is_behind = first > seq + 1

    def put(self, events: Sequence[Event]) -> None:
        if len(self._queue) + len(events) > QUEUED_EVENTS:
            self._queue, self.is_behind = [], True
        elif not self.is_behind:
            self._queue += events
        self._is_news.set()

    def wake(self) -> None:
        """There is more text."""
        self._is_news.set()

    async def take(self, timeout_seconds: float) -> list[Event]:
        """The next events; none if there is only more text, if the feed is behind now, or after so
        long."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._is_news.wait()
        except TimeoutError:
            pass
        self._is_news.clear()
        events, self._queue = self._queue, []
        return events

    def text(self, seq: int) -> TextInProgress | None:
        """The text in progress, for a reader that has all events up to `seq`; None if it knows more
        or less than the hub does, and so cannot tell which attempts are over."""
        watch = self._watch
        return watch.text if watch is not None and watch.head == seq else None


class _Watch:
    """A run that somebody reads, as far as this process knows it."""

    def __init__(self, tenant_id: TenantId, head: int, position: Position) -> None:
        self.tenant_id = tenant_id
        self.head = head  # the last event that its feeds were given
        self.feeds: set[Feed] = set()
        self.text = TextInProgress(position)
        self.place = "0"  # in the stream of its text


class Hub:
    """Serves the readers of this process. Enter it on the event loop that they live on.

    It reads pages through `tenant`, the database as a tenant sees it, and looks for what is new
    through `lookout`, the same for several: two looks at once, at most.
    """

    def __init__(
        self,
        tenant: Callable[[TenantId], TenantDatabase],
        lookout: Callable[[Sequence[TenantId]], TenantDatabase],
        broker_url: str | None,
    ) -> None:
        self._tenant = tenant
        self._lookout = lookout
        self._watches: dict[RunId, _Watch] = {}
        self._woken: set[RunId] = set()
        self._has_text: set[RunId] = set()
        self._is_woken = asyncio.Event()
        self._is_text = asyncio.Event()
        self._pages = anyio.CapacityLimiter(PAGES_AT_ONCE)
        self._looks = anyio.CapacityLimiter(LOOKS_AT_ONCE)
        is_redis = broker_url is not None and broker_url.startswith("redis")
        self._ear = (
            Ear(broker_url, self._wake, self._wake_for_text) if is_redis and broker_url else None
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Hub"]:
        """Serve until the end of the block."""
        looks: list[Look] = [self._look_where_woken, self._poll]
        if (ear := self._ear) is not None:
            looks += [ear.listen, partial(self._look_for_text, ear)]
        tasks = [asyncio.create_task(_again_and_again(look)) for look in looks]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._ear is not None:
                await self._ear.close()

    @property
    def sizes(self) -> tuple[int, int]:
        """How many readers follow, and how many runs."""
        watches = list(self._watches.values())
        return sum(len(watch.feeds) for watch in watches), len(watches)

    @contextmanager
    def feed(self, tenant_id: TenantId, run_id: RunId) -> Iterator[Feed]:
        """A feed for one reader of that tenant's run."""
        feed = Feed(self, tenant_id, run_id)
        try:
            yield feed
        finally:
            watch = self._watches.get(run_id)
            if watch is not None and feed in watch.feeds:
                watch.feeds.discard(feed)
                if not watch.feeds:
                    del self._watches[run_id]
                    if self._ear is not None:
                        self._ear.forget(run_id)

    async def read_page(self, tenant_id: TenantId, run_id: RunId, after: int) -> Page:
        """A page of the history of that tenant's run. Raises `UnknownRun` or
        `DatabaseUnavailable`."""
        read = partial(
            following.read_page,
            self._tenant(tenant_id),
            run_id=run_id,
            after=after,
            limit=EVENTS_PER_READ,
        )
        return await anyio.to_thread.run_sync(read, limiter=self._pages)

    def _join(self, feed: Feed, seq: int, position: Position) -> _Watch:
        watch = self._watches.get(feed.run_id)
        if watch is None:
            watch = self._watches[feed.run_id] = _Watch(feed.tenant_id, seq, position)
            if self._ear is not None:
                self._ear.listen_for(feed.run_id)  # and be called back as soon as that is so
        watch.feeds.add(feed)
        return watch

    def _wake(self, run_id: RunId) -> None:
        self._woken.add(run_id)
        self._is_woken.set()

    def _wake_for_text(self, run_id: RunId) -> None:
        self._has_text.add(run_id)
        self._is_text.set()

    async def _look_where_woken(self) -> None:
        """At once where it rings, and together where it rings meanwhile."""
        await self._is_woken.wait()
        self._is_woken.clear()
        woken, self._woken = self._woken, set()
        try:
            await self._look_for_events(woken)
        except DatabaseUnavailable:
            self._woken |= woken
            self._is_woken.set()
            raise
        await asyncio.sleep(GATHER_SECONDS)

    async def _poll(self) -> None:
        """Look at all runs once, spread over the period: who is woken never waits for all."""
        clock = asyncio.get_running_loop()
        is_deaf = self._ear is None or self._ear.is_deaf
        seconds, began = DEAF_POLL_SECONDS if is_deaf else POLL_SECONDS, clock.time()
        runs = list(self._watches)
        slices = max(1, -(-len(runs) // POLLED_AT_ONCE))
        for number in range(slices):
            await self._look_for_events(set(runs[number::slices]))
            await asyncio.sleep(began + seconds * (number + 1) / slices - clock.time())

    async def _look_for_events(self, runs: Set[RunId]) -> None:
        heads = {run_id: self._watches[run_id].head for run_id in runs & self._watches.keys()}
        if not heads:
            return
        lookout = self._lookout(sorted({self._watches[run_id].tenant_id for run_id in heads}))
        read = partial(following.read_news, lookout, heads=heads, limit=EVENTS_PER_READ)
        found = await anyio.to_thread.run_sync(read, limiter=self._looks)
        for run_id, news in groupby(found, lambda event: event.run_id):
            self._give(run_id, list(news))

    def _give(self, run_id: RunId, events: list[Event]) -> None:
        watch = self._watches.get(run_id)
        if watch is None:
            return  # its last reader left meanwhile
        events = [event for event in events if event.seq > watch.head]
        if not events:
            return  # another look was faster, or its watch has ended and another one begun
        if len(events) >= EVENTS_PER_READ:
            self._wake(run_id)
        watch.head = events[-1].seq
        for event in events:
            watch.text.note(event)
        for feed in watch.feeds:
            feed.put(events)

    async def _look_for_text(self, ear: Ear) -> None:
        await self._is_text.wait()
        self._is_text.clear()
        runs, self._has_text = self._has_text & self._watches.keys(), set()
        if not runs:
            return
        read = await ear.read_text({run_id: self._watches[run_id].place for run_id in runs})
        for run_id, (place, pieces) in read.items():
            watch = self._watches.get(run_id)
            if watch is None:
                continue  # its last reader left meanwhile
            watch.place = place
            news = [watch.text.add(piece) for piece in pieces]
            if any(news):
                for feed in watch.feeds:
                    feed.wake()
            if len(pieces) == PIECES_PER_READ:
                self._wake_for_text(run_id)


async def _again_and_again(look: Look) -> None:
    """What is missed by a look that fails is found by the next poll, or when Redis is back."""
    while True:
        try:
            await look()
        except (DatabaseUnavailable, RedisError, OSError) as error:
            logger.warning("readers of runs wait: %s", error)
            await asyncio.sleep(TROUBLE_SECONDS)
        except Exception:
            # Our own fault. Without this task no reader would ever hear anything again.
            logger.exception("serving the readers of runs failed")
            await asyncio.sleep(TROUBLE_SECONDS)
