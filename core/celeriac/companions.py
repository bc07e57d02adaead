"""Functions that a tool declares beside its own, such as where to look after a call.

They take the `ToolContext` first, and after it any of the tool's parameters by name.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celeriac.context import ToolContext
from celeriac.errors import ToolError

RESULT = "result"
"""By this name an undo, and what looks after it, is given what the call returned."""


def contradiction(what: str, function: Callable[..., Any], parameters: Sequence[str]) -> str | None:
    """Why `function` cannot be the `what` of a tool with these parameters, or None."""
    if inspect.iscoroutinefunction(function):
        return f"{what} is an async function; give a plain one"
    unknown = [name for name in _names(function)[1:] if name not in parameters]
    if unknown or not _names(function):
        return (
            f"{what} takes the ToolContext first, and after it any of the tool's own "
            f"parameters by name ({', '.join(parameters) or 'it has none'}); "
            f"{', '.join(unknown) or 'the ToolContext'} does not fit"
        )
    return None


def call(function: Callable[..., Any], context: ToolContext, arguments: Mapping[str, Any]) -> Any:
    """What `function` returns, given those of the call's `arguments` that it takes.

    Raises `ToolError` if that is to be awaited: nothing of it has been done.
    """
    given = dict(arguments)
    if context.undoes_key is not None:
        given[RESULT] = context._undone_result
    returned = function(context, **{name: given[name] for name in _names(function)[1:]})
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()  # or Python would warn that it was never awaited
        raise ToolError("it returned an awaitable, which nobody awaits; give a plain function")
    return returned


def _names(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)
