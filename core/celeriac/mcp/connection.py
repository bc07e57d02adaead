"""A process's connection to one MCP server: made at the first call, and again when it is lost.

It lives on the model loop, in a task of its own. Before a call it is made sure that the server
answers and still says of the tool what was pinned; of a call that only reads, it is enough if that
was so a moment ago. What fails up to there has certainly done nothing. The request is sent once.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celeriac.context import ToolContext
from celeriac.errors import InvalidAgent, ToolError
from celeriac.mcp.offer import OfferedTool, by_name, offered
from celeriac.mcp.servers import Server, StdioServer
from celeriac.secrets import redact

if TYPE_CHECKING:
    from mcp import ClientSession
    from mcp.types import CallToolResult

logger = logging.getLogger(__name__)

READY_SECONDS = 15.0  # to start a server, or to have it tell its tools again
TRUSTED_SECONDS = 5.0
"""How long a server that has told its tools is taken for alive and unchanged, by calls that only
read."""

MAX_MESSAGE_BYTES = 8 * 2**20
KEY = "celeriac/idempotency-key"
"""Where in a request's `_meta` the call's idempotency key is, for servers that know it."""

MAX_ERROR_CHARACTERS = 500


class ServerFailed(Exception):
    """The call came to no good end, and may have changed something."""


@dataclass
class Opened:
    """A session that was opened, and why it ended, if that is known."""

    session: "ClientSession"
    endings: list[str]
    tools: Mapping[str, OfferedTool] = field(default_factory=dict)
    told_at: float = float("-inf")


@asynccontextmanager
async def open_session(server: Server) -> AsyncIterator[Opened]:
    """A session with the server; it belongs to the task that enters."""
    try:
        from mcp import Client
    except ImportError as error:
        raise InvalidAgent(
            f'MCP server {server.name} needs another package: pip install "celeriac[mcp]"'
        ) from error
    from celeriac.mcp.http_transport import http_transport
    from celeriac.mcp.stdio_transport import stdio_transport

    endings: list[str] = []
    if isinstance(server, StdioServer):
        transport = stdio_transport(server, MAX_MESSAGE_BYTES, endings)
    else:
        transport = http_transport(server, MAX_MESSAGE_BYTES)
    # Without its cache: a list of tools that is not the server's own answer tells nothing.
    async with Client(transport, cache=None) as client:
        yield Opened(client.session, endings)


class Connection:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = asyncio.Lock()
        self._opened: Opened | None = None
        self._closing = asyncio.Event()
        self._owners: set[asyncio.Task[None]] = set()

    async def call(
        self,
        tool: OfferedTool,
        arguments: dict[str, Any],
        context: ToolContext,
        *,
        ready_seconds: float,
        trusted_seconds: float,
    ) -> "CallToolResult":
        """What the server answers, an error of the tool itself included.

        Raises `ToolError` if nothing was called, since the server was not ready within
        `ready_seconds` or has changed the tool, or if it refused the request as such; and
        `ServerFailed` if nobody can tell.
        """
        try:
            opened = await self._ready_for(tool, ready_seconds, trusted_seconds)
            return await self._sent(opened, tool, arguments, context)
        except ToolError as error:
            if context.attempt > 1:  # it says nothing of the attempts before
                raise ServerFailed(str(error)) from error
            raise

    async def _sent(
        self, opened: Opened, tool: OfferedTool, arguments: dict[str, Any], context: ToolContext
    ) -> "CallToolResult":
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND

        try:
            meta: Any = {KEY: context.idempotency_key}
            return await opened.session.call_tool(tool.name, arguments, meta=meta)
        except asyncio.CancelledError:
            opened.told_at = float("-inf")  # given up at its deadline: does the server live?
            raise
        except MCPError as error:
            if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
                raise ToolError(self._said(error)) from error
            if error.code == CONNECTION_CLOSED:
                self._drop(opened)
            raise ServerFailed(self._said(error, opened)) from error
        except Exception as error:
            self._drop(opened)
            raise ServerFailed(self._said(error, opened)) from error

    async def _ready_for(
        self, tool: OfferedTool, ready_seconds: float, trusted_seconds: float
    ) -> Opened:
        self._follow_the_loop()
        try:
            async with asyncio.timeout(ready_seconds), self._lock:
                opened = await self._told(trusted_seconds)
        except Exception as error:
            if isinstance(error, TimeoutError) and self._opened is not None:
                self._drop(self._opened)
            raise ToolError(f"{self._said(error)}; nothing was called") from error
        if changed := tool.difference(opened.tools.get(tool.name)):
            raise ToolError(
                f"MCP server {self._server.name} has changed its tool {tool.name} since it was "
                f"pinned: {changed}. Nothing was called. Read what it says now, and pin it again "
                "if that is right"
            )
        return opened

    async def _told(self, trusted_seconds: float) -> Opened:
        """The session, with the tools as the server tells them now or told a moment ago."""
        opened = self._opened
        if opened is not None and time.monotonic() - opened.told_at < trusted_seconds:
            return opened
        if opened is not None:
            try:
                return await self._list(opened)
            except InvalidAgent:
                raise
            except Exception as error:  # noqa: BLE001 - whatever ended it, another one is opened
                logger.info("MCP server %s is connected to again: %s", self._server.name, error)
                self._drop(opened)
        return await self._list(await self._open())

    async def _list(self, opened: Opened) -> Opened:
        opened.tools = by_name(await offered(opened.session))
        opened.told_at = time.monotonic()
        return opened

    async def _open(self) -> Opened:
        ready: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        closing = asyncio.Event()
        owner = asyncio.create_task(self._own(ready, closing), name=f"mcp-{self._server.name}")
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        try:
            opened = await ready
        except BaseException:
            closing.set()
            owner.cancel()
            raise
        self._opened, self._closing = opened, closing
        return opened

    async def _own(self, ready: "asyncio.Future[Opened]", closing: asyncio.Event) -> None:
        """Hold the session open; the task that entered it is the one that has to leave it."""
        try:
            async with open_session(self._server) as opened:
                if not ready.cancelled():
                    ready.set_result(opened)
                await closing.wait()
        except Exception as error:  # noqa: BLE001 - told to whoever waits for the session
            if not ready.done():
                ready.set_exception(error)
            else:
                logger.info("MCP server %s: %s", self._server.name, described(error))
        finally:
            if not ready.done():
                ready.cancel()

    def _drop(self, opened: Opened) -> None:
        """Leave the session; the next call opens another."""
        if self._opened is opened:
            self._opened = None
            self._closing.set()

    def _follow_the_loop(self) -> None:
        """Begin anew on another loop: that of a forked child, or one that was started again."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lock, self._opened = loop, asyncio.Lock(), None
            self._owners = set()

    def _said(self, error: BaseException, opened: Opened | None = None) -> str:
        why = "; ".join(opened.endings) if opened is not None and opened.endings else None
        return f"MCP server {self._server.name}: {why or described(error)}"


_connections: dict[Server, Connection] = {}


def connection_to(server: Server) -> Connection:
    """The one that all tools of this server share."""
    return _connections.setdefault(server, Connection(server))


def described(error: BaseException) -> str:
    """What went wrong, in one short line and without secrets."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError) and not str(error):
        return "it does not answer"
    text = redact(f"{type(error).__name__}: {error}")
    return " ".join(text.split())[:MAX_ERROR_CHARACTERS]
