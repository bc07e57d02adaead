"""The undo of a tool's calls, as something to execute like a tool. No model is shown it."""

from dataclasses import replace
from typing import Any

from celeriac import companions
from celeriac.parameters import CONTEXT
from celeriac.rollback import UNDO_SUFFIX, Rollback
from celeriac.tool_flags import ToolFlags
from celeriac.tools import Tool


def undo_name(tool_name: str) -> str:
    """What the undo of a tool is called in rows and messages."""
    return tool_name + UNDO_SUFFIX


def undo_tool(tool: Tool[..., Any]) -> Tool[..., Any] | None:
    """What takes a call of `tool` back, given the call's own arguments; None if only people can."""
    declared = tool.undo
    if declared is None:
        return None

    def take_back(**keywords: Any) -> Any:
        return companions.call(declared.undo, keywords.pop(CONTEXT), keywords)

    return replace(
        tool,
        name=undo_name(tool.name),
        description=f"Take back a call of {tool.name}.",
        function=take_back,
        timeout_seconds=declared.timeout_seconds or tool.timeout_seconds,
        flags=ToolFlags(),
        recovery=declared.recovery,
        precondition=None,
        rollback=Rollback.NONE,
        undo=None,
        approval=None,
        parameters=replace(tool.parameters, context=CONTEXT),
        undoes=tool.name,
    )
