"""Streamable HTTP, with a bound on what an answer may hold."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from celeriac.mcp.servers import HttpServer

CONNECT_SECONDS = 10.0


@asynccontextmanager
async def http_transport(server: HttpServer, max_message_bytes: int) -> AsyncIterator[Any]:
    bounded = _Bounded(httpx2.AsyncHTTPTransport(), max_message_bytes)
    # A call's own deadline bounds how long an answer may take.
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None)
    headers = {**server.headers, "Accept-Encoding": "identity"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, transport=bounded) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=max_message_bytes
        ) as streams,
    ):
        yield streams


class _Bounded(httpx2.AsyncBaseTransport):
    """Gives up on an answer that is too long, or packed so that it may become that."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        packed = response.headers.get("content-encoding", "identity")
        if packed.lower() != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError(f"the answer is packed ({packed[:40]}), unasked")
        # A stream of events has no end; there each event is bounded.
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream, self._max_bytes)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"the answer has more than {self._max_bytes} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
