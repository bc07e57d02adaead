"""Asking a server what tools it offers just now."""

import asyncio
import threading
from concurrent.futures import Future

from celeriac.errors import InvalidAgent
from celeriac.mcp.offer import OfferedTool, offered
from celeriac.mcp.servers import Server

LIST_SECONDS = 30.0


def list_now(server: Server) -> list[OfferedTool]:
    """The server's tools, over a connection that is closed again. Raises `InvalidAgent`."""
    from celeriac.mcp.connection import described, open_session

    async def look() -> list[OfferedTool]:
        async with asyncio.timeout(LIST_SECONDS), open_session(server) as opened:
            return await offered(opened.session)

    done: Future[list[OfferedTool]] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(look()))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            done.set_exception(error)

    # In a thread: whoever imports the module may have an event loop of his own.
    threading.Thread(target=run, name=f"celeriac-mcp-{server.name}", daemon=True).start()
    try:
        return done.result(LIST_SECONDS + 10)
    except InvalidAgent:
        raise
    except Exception as error:
        raise InvalidAgent(
            f"MCP server {server.name} does not tell its tools: {described(error)}"
        ) from error
