"""What a server said of its tools when somebody looked, and what has changed since.

A server that is trusted today may describe its tools otherwise tomorrow, so that a model calls them
for something else. So tools are declared from what was pinned, and called only while the server
still says the same.
"""

import asyncio
import hashlib
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidAgent
from celeriac.mcp.servers import Server
from celeriac.schemas import strict_json

if TYPE_CHECKING:
    from mcp import ClientSession

MAX_TOOLS = 256
MAX_DEFINITION_BYTES = 65_536
LIST_SECONDS = 30.0


@dataclass(frozen=True)
class PinnedTool:
    """A tool as a server describes it. All of it but the name is the server's word, and data."""

    name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    annotations: dict[str, Any]

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "annotations": self.annotations,
        }

    @property
    def hash(self) -> str:
        """sha256 of the whole definition, 64 hex digits."""
        return hashlib.sha256(dumps(self.to_json()).encode()).hexdigest()

    def difference(self, now: "PinnedTool | None") -> str | None:
        """What the server says otherwise now, or None."""
        if now is None:
            return "it is not there any more"
        mine, others = self.to_json(), now.to_json()
        changed = [name for name in mine if mine[name] != others[name]]
        return f"it has another {' and '.join(changed)}" if changed else None


def pin(server: Server, path: str | Path) -> None:
    """Ask the server for its tools and write what it says to the file, for people to read and keep.

    Raises `InvalidAgent` if the server cannot be reached or says what no tool can be.
    """
    tools = list_now(server)
    text = json.dumps(
        {"server": server.name, "tools": [tool.to_json() for tool in tools]},
        indent=2,
        ensure_ascii=False,
    )
    Path(path).write_text(f"{text}\n")


def read_pins(server: Server, path: str | Path) -> list[PinnedTool]:
    """What `pin` wrote. Raises `InvalidAgent`."""
    try:
        kept = json.loads(Path(path).read_text())
        tools = [PinnedTool(**tool) for tool in kept["tools"]]
        pinned_of = kept["server"]
    except FileNotFoundError:
        raise InvalidAgent(
            f"there is no file {path} with the tools of MCP server {server.name}: write it with "
            "celeriac.mcp.pin(server, path), and read what it says"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidAgent(f"{path} is not what celeriac.mcp.pin writes: {error}") from error
    if pinned_of != server.name:
        raise InvalidAgent(f"{path} has the tools of {pinned_of}, not of {server.name}")
    return tools


def list_now(server: Server) -> list[PinnedTool]:
    """The server's tools, over a connection that is closed again. Raises `InvalidAgent`."""
    from celeriac.mcp.connection import described, open_session

    async def look() -> list[PinnedTool]:
        async with asyncio.timeout(LIST_SECONDS), open_session(server) as opened:
            return await offered(opened.session)

    done: Future[list[PinnedTool]] = Future()

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


async def offered(session: "ClientSession") -> list[PinnedTool]:
    """All tools that the server tells of, within bounds. Raises `InvalidAgent`."""
    from mcp.types import PaginatedRequestParams

    found: dict[str, PinnedTool] = {}
    cursor: str | None = None
    for _ in range(MAX_TOOLS):  # pages, of a server that may never come to an end
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        for tool in page.tools:
            if tool.name in found:
                raise InvalidAgent(f"the server has two tools of the name {tool.name!r}")
            found[tool.name] = _read(tool)
        if len(found) > MAX_TOOLS:
            raise InvalidAgent(f"the server has more than {MAX_TOOLS} tools")
        cursor = page.next_cursor
        if cursor is None:
            return list(found.values())
    raise InvalidAgent(f"the server's list of tools has more than {MAX_TOOLS} pages")


def by_name(tools: Sequence[PinnedTool]) -> dict[str, PinnedTool]:
    return {tool.name: tool for tool in tools}


def _read(tool: Any) -> PinnedTool:
    said = tool.annotations
    hints = {} if said is None else said.model_dump(by_alias=True, exclude_none=True)
    read = PinnedTool(
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=hints,
    )
    strict_json(read.to_json())
    if len(dumps(read.to_json())) > MAX_DEFINITION_BYTES:
        raise InvalidAgent(
            f"tool {tool.name[:64]!r} is described in more than {MAX_DEFINITION_BYTES} bytes"
        )
    return read
