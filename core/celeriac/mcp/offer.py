"""What a server says of its tools, within bounds."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidAgent
from celeriac.schemas import strict_json

if TYPE_CHECKING:
    from mcp import ClientSession

MAX_TOOLS = 256
MAX_DEFINITION_BYTES = 65_536


@dataclass(frozen=True)
class OfferedTool:
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

    def difference(self, now: "OfferedTool | None") -> str | None:
        """What the server says otherwise now, or None."""
        if now is None:
            return "it is not there any more"
        mine, others = self.to_json(), now.to_json()
        changed = [name for name in mine if mine[name] != others[name]]
        return f"it has another {' and '.join(changed)}" if changed else None


def by_name(tools: Sequence[OfferedTool]) -> dict[str, OfferedTool]:
    return {tool.name: tool for tool in tools}


async def offered(session: "ClientSession") -> list[OfferedTool]:
    """All tools that the server tells of, within bounds. Raises `InvalidAgent`."""
    from mcp.types import PaginatedRequestParams

    found: dict[str, OfferedTool] = {}
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


def _read(tool: Any) -> OfferedTool:
    said = tool.annotations
    hints = {} if said is None else said.model_dump(by_alias=True, exclude_none=True)
    read = OfferedTool(
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
