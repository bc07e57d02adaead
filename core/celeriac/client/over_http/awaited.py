"""Carries what a client asks for to the API and back, on an event loop."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import httpx2

from celeriac.client.ask import Answer, Ask
from celeriac.client.over_http import connection
from celeriac.client.over_http.request import Request, go_on
from celeriac.client.over_http.story import Story
from celeriac.client.over_http.tries import Tries
from celeriac.client.vigil import Vigil
from celeriac.ids import RunId
from celeriac.reports import Event, Run


class AsyncHttpDesk:
    """One service, for one event loop."""

    def __init__(
        self, url: str, token: str | None, *, timeout_seconds: float, patience_seconds: float
    ) -> None:
        self.address = connection.checked_address(url)
        self._client = httpx2.AsyncClient(**connection.settings(token, timeout_seconds))
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds

    async def close(self) -> None:
        await self._client.aclose()

    async def answer(self, ask: Ask[Answer]) -> Answer:
        flow = ask.over_http()
        try:
            request = next(flow)
            while True:
                request = go_on(flow, request, await self._send(request))
        except StopIteration as done:
            value: Answer = done.value
            return value

    def events(
        self, run_id: RunId, after: int, *, until: int | None = None
    ) -> AsyncGenerator[Event]:
        return self._events(Story(run_id, after, until))

    async def watch(self, vigil: Vigil) -> AsyncGenerator[Run]:
        """The run at each moment that `vigil` wants to see. Raises `TimeoutError`."""
        since = await self.answer(vigil.position())
        yield vigil.see(await self.answer(vigil.look()))
        if vigil.is_over:
            return
        story = Story(vigil.run_id, since.last_event_seq)
        async with aclosing(self._events(story, vigil)) as events:
            async for event in events:
                if vigil.heeds(event):
                    run = await self.answer(vigil.look())
                    if vigil.is_news(run):
                        yield vigil.see(run)
                    if vigil.is_over:
                        return

    async def _send(self, request: Request) -> object:
        tries = Tries(request, self.address, self._patience_seconds)
        while True:
            try:
                response = await self._client.request(
                    request.method,
                    self.address + request.path,
                    **connection.arguments(request),
                )
            except httpx2.RequestError as error:
                pause = tries.lost(error)
            else:
                if response.is_success:
                    return connection.told(request, response)
                pause = connection.refused(tries, response)
            await anyio.sleep(pause)

    async def _events(self, story: Story, vigil: Vigil | None = None) -> AsyncGenerator[Event]:
        tries = Tries(story.request(), self.address, self._patience_seconds)
        while not story.is_over:
            request = story.request() if vigil is None else story.request(vigil.seconds_left())
            try:
                async with self._client.stream(
                    "GET",
                    self.address + request.path,
                    timeout=connection.stream_timeout(self._timeout_seconds),
                    **connection.arguments(request),
                ) as response:
                    if response.status_code == 204:  # ended, and nothing comes any more
                        return
                    if response.status_code == 200:
                        connection.check_stream(request, response)
                        async for received in response.aiter_bytes():
                            tries.succeeded()
                            for event in story.feed(received):
                                yield event
                            if story.is_over:
                                return
                        pause = tries.ended()
                    else:
                        await response.aread()
                        pause = connection.refused(tries, response)
            except httpx2.RequestError as error:
                pause = tries.lost(error)
            await anyio.sleep(pause)
