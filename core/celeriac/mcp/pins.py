"""What a server said of its tools when somebody looked, and what has changed since.

A server that is trusted today may describe its tools otherwise tomorrow, so that a model calls them
for something else. So tools are declared from what was pinned, and called only while the server
still says the same.
"""

import json
from pathlib import Path

from celeriac.errors import InvalidAgent
from celeriac.mcp.listing import list_now
from celeriac.mcp.offer import OfferedTool
from celeriac.mcp.servers import Server


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


def read_pins(server: Server, path: str | Path) -> list[OfferedTool]:
    """What `pin` wrote. Raises `InvalidAgent`."""
    try:
        kept = json.loads(Path(path).read_text())
        tools = [OfferedTool(**tool) for tool in kept["tools"]]
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
