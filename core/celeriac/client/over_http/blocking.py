"""Carries what a client asks for to the API and back, waiting for each answer."""

import os
import threading
import time
from collections.abc import Iterator

import httpx2

from celeriac.client.ask import Answer, Ask
from celeriac.client.over_http import connection
from celeriac.client.over_http.request import Request, go_on
from celeriac.client.over_http.story import Story
from celeriac.client.over_http.tries import Tries
from celeriac.client.vigil import Vigil
from celeriac.ids import RunId
from celeriac.reports import Event, Run


class HttpDesk:
    """One service, for all threads of a process; a forked child opens connections of its own."""

    def __init__(
        self, url: str, token: str | None, *, timeout_seconds: float, patience_seconds: float
    ) -> None:
        self.address = connection.checked_address(url)
        self._settings = connection.settings(token, timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._patience_seconds = patience_seconds
        self._opening = threading.Lock()
        self._client: httpx2.Client | None = None
        self._pid = 0

    def close(self) -> None:
        with self._opening:
            client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()

    def answer(self, ask: Ask[Answer]) -> Answer:
        flow = ask.over_http()
        try:
            request = next(flow)
            while True:
                request = go_on(flow, request, self._send(request))
        except StopIteration as done:
            value: Answer = done.value
            return value

    def events(self, run_id: RunId, after: int, *, until: int | None = None) -> Iterator[Event]:
        return self._events(Story(run_id, after, until))

    def watch(self, vigil: Vigil) -> Iterator[Run]:
        """The run at each moment that `vigil` wants to see. Raises `TimeoutError`."""
        since = self.answer(vigil.position())
        yield vigil.see(self.answer(vigil.look()))
        if vigil.is_over:
            return
        for event in self._events(Story(vigil.run_id, since.last_event_seq), vigil):
            if vigil.heeds(event):
                run = self.answer(vigil.look())
                if vigil.is_news(run):
                    yield vigil.see(run)
                if vigil.is_over:
                    return

    def _send(self, request: Request) -> object:
        tries = Tries(request, self.address, self._patience_seconds)
        while True:
            try:
                response = self._opened().request(
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
            time.sleep(pause)

    def _events(self, story: Story, vigil: Vigil | None = None) -> Iterator[Event]:
        tries = Tries(story.request(), self.address, self._patience_seconds)
        while not story.is_over:
            request = story.request() if vigil is None else story.request(vigil.seconds_left())
            try:
                with self._opened().stream(
                    "GET",
                    self.address + request.path,
                    timeout=connection.stream_timeout(self._timeout_seconds),
                    **connection.arguments(request),
                ) as response:
                    if response.status_code == 204:  # ended, and nothing comes any more
                        return
                    if response.status_code == 200:
                        connection.check_stream(request, response)
                        for received in response.iter_bytes():
                            tries.succeeded()
                            yield from story.feed(received)
                            if story.is_over:
                                return
                        pause = tries.ended()
                    else:
                        response.read()
                        pause = connection.refused(tries, response)
            except httpx2.RequestError as error:
                pause = tries.lost(error)
            time.sleep(pause)

    def _opened(self) -> httpx2.Client:
        with self._opening:
            if self._client is None or self._pid != os.getpid():
                # A forked child must not talk on its parent's connections, nor end them.
                self._client, self._pid = httpx2.Client(**self._settings), os.getpid()
            return self._client
