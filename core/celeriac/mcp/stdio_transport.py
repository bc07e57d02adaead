"""A server's pipes, with bounds that hold for a server that means harm.

The package's own transport keeps a line in memory however long it gets, and hands what a server
writes to standard error on to ours, secrets and all.
"""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

from celeriac.mcp.servers import StdioServer
from celeriac.secrets import redact

logger = logging.getLogger(__name__)

END_SECONDS = 1.0  # for the server to end by itself, and once more after SIGTERM
MAX_LOGGED_CHARACTERS = 500


@asynccontextmanager
async def stdio_transport(
    server: StdioServer, max_message_bytes: int, endings: list[str]
) -> AsyncIterator[tuple[Any, Any]]:
    """Start the server and speak to it. Why it stopped to answer is added to `endings`."""
    process = await asyncio.create_subprocess_exec(
        *server.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=get_default_environment() | dict(server.env),
        cwd=server.cwd,
        limit=max_message_bytes,
        start_new_session=True,  # Ctrl-C is for the worker, which still waits for its calls
    )
    incoming, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sending, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(_read(process, incoming, endings, max_message_bytes)),
        asyncio.create_task(_write(process, outgoing)),
        asyncio.create_task(_log(server.name, process)),
    ]
    try:
        yield received, sending
    finally:
        for task in tasks:
            task.cancel()
        # Shielded from the scopes around it; a loop that closes cancels it all the same, once.
        with anyio.CancelScope(shield=True):
            try:
                await _end(process)
            finally:
                await _kill(process)
                for stream in (incoming, received, sending, outgoing):
                    stream.close()


async def _read(
    process: asyncio.subprocess.Process, incoming: Any, endings: list[str], max_bytes: int
) -> None:
    assert process.stdout is not None
    with incoming:  # closed, it tells every call that waits
        try:
            while line := await process.stdout.readline():
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    logger.debug("a line of the server's output is no message of the protocol")
                    continue
                await incoming.send(SessionMessage(message))
            endings.append("it has ended")
        except ValueError:
            endings.append(f"it sent a message of more than {max_bytes} bytes")
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            pass  # nobody listens any more
        except OSError as error:
            endings.append(f"its output cannot be read: {error}")


async def _write(process: asyncio.subprocess.Process, outgoing: Any) -> None:
    assert process.stdin is not None
    with suppress(OSError, anyio.ClosedResourceError):  # of a server that has ended, `_read` tells
        async for each in outgoing:
            text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _log(name: str, process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    while chunk := await process.stderr.read(4096):
        if logger.isEnabledFor(logging.DEBUG):
            text = redact(chunk.decode(errors="replace"))[:MAX_LOGGED_CHARACTERS]
            logger.debug("MCP server %s: %r", name, text)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Have it end by itself, as far as it does."""
    assert process.stdin is not None
    process.stdin.close()
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_SECONDS)
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_SECONDS)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill what is left of its process group, and let go of its pipes."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    # Or it would wait for the end of pipes that a grandchild may hold.
    transport: Any = process
    transport._transport.close()
