"""Tools made of what an MCP server offers."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from celeriac.errors import InvalidAgent, ToolError
from celeriac.mcp.connection import (
    READY_SECONDS,
    TRUSTED_SECONDS,
    Connection,
    ServerFailed,
    connection_to,
)
from celeriac.mcp.listing import list_now
from celeriac.mcp.offer import OfferedTool
from celeriac.mcp.pins import read_pins
from celeriac.mcp.policy import ServerPolicy
from celeriac.mcp.results import read_result
from celeriac.mcp.schema_shape import read_schema
from celeriac.mcp.servers import Server
from celeriac.parameters import CONTEXT
from celeriac.rollback import Rollback
from celeriac.states import EffectKind
from celeriac.tool_flags import ToolFlags
from celeriac.tools import Tool

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_INVISIBLE = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
"""Control characters, and those that hide text or turn it around, from models and people alike."""


def mcp_tools(
    server: Server,
    *,
    policy: ServerPolicy | None = None,
    pins: str | Path | None = None,
    only: Collection[str] | None = None,
    prefix: str | None = None,
) -> list[Tool[..., Any]]:
    """The server's tools, or `only` those, by the server's own names for them.

    With `pins`, a file that `pin` wrote, the tools are what stands there, and nothing is asked of
    the server before the first call. Without it the server is asked now, in every process that
    imports the agent. Either way a tool is called only while the server says the same of it.

    The model knows them as `prefix`, by default the server's name and `_`, and the tool's name.

    Raises `InvalidAgent` if the server cannot be asked, or if something it offers cannot be a tool.
    """
    policy = policy or ServerPolicy()
    offered = list_now(server) if pins is None else read_pins(server, pins)
    _check_names(server, offered, [*policy.named, *(only or ())])
    connection = connection_to(server)
    begins = f"{server.name}_" if prefix is None else prefix
    return [
        _tool(server, connection, policy, tool, begins)
        for tool in offered
        if only is None or tool.name in only
    ]


def _tool(
    server: Server, connection: Connection, policy: ServerPolicy, pinned: OfferedTool, prefix: str
) -> Tool[..., Any]:
    kind = policy.kind(pinned)
    # What takes longer than this to get ready has certainly not been called.
    ready_seconds = min(READY_SECONDS, policy.timeout_seconds / 2)
    trusted_seconds = TRUSTED_SECONDS if kind is EffectKind.NONE else 0.0

    async def call(**keywords: Any) -> Any:
        context = keywords.pop(CONTEXT)
        answer = await connection.call(
            pinned,
            keywords,
            context,
            ready_seconds=ready_seconds,
            trusted_seconds=trusted_seconds,
        )
        result = read_result(answer, policy.max_result_bytes)
        if not answer.is_error:
            return result
        said = f"{result}" or "it says only that it failed"
        if kind is EffectKind.NONE or (policy.trusts_errors and context.attempt == 1):
            raise ToolError(said)
        raise ServerFailed(f"MCP server {server.name} answered with an error: {said}")

    name = prefix + _NOT_IN_A_NAME.sub("_", pinned.name)
    about = _INVISIBLE.sub(" ", pinned.description).strip()
    try:
        return Tool(
            name=name,
            description=about or f"{pinned.name} of the server {server.name}",
            function=call,
            effect=kind,
            version=pinned.hash[:16],
            timeout_seconds=policy.timeout_seconds,
            flags=ToolFlags(stateful=kind is EffectKind.EXTERNAL),
            recovery=policy.recovery(pinned),
            precondition=None,
            rollback=Rollback.OUT_OF_BAND,
            undo=None,
            approval=policy.approval_of(pinned),
            parameters=read_schema(pinned.input_schema),
        )
    except InvalidAgent as error:
        raise InvalidAgent(f"tool {name!r} of MCP server {server.name}: {error}") from error


def _check_names(server: Server, offered: list[OfferedTool], named: list[str]) -> None:
    known = [tool.name for tool in offered]
    if unknown := [name for name in named if name not in known]:
        raise InvalidAgent(
            f"MCP server {server.name} has no tool {unknown[0]!r}; it has {', '.join(known)}"
        )
    seen: dict[str, str] = {}
    for name in known:
        written = _NOT_IN_A_NAME.sub("_", name)
        if written in seen:
            raise InvalidAgent(
                f"MCP server {server.name} has the tools {seen[written]!r} and {name!r}, which a "
                "model could not tell apart; leave one out with only=[...]"
            )
        seen[written] = name
