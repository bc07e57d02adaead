"""Agent runs that outlive the process that runs them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celeriac.agent import Agent
    from celeriac.client import Client
    from celeriac.context import ToolContext
    from celeriac.errors import ToolError
    from celeriac.limits import Limits
    from celeriac.tools import tool

__all__ = ["Agent", "Client", "Limits", "ToolContext", "ToolError", "tool"]

_HOMES = {
    "Agent": "celeriac.agent",
    "Client": "celeriac.client",
    "Limits": "celeriac.limits",
    "ToolContext": "celeriac.context",
    "ToolError": "celeriac.errors",
    "tool": "celeriac.tools",
}


def __getattr__(name: str) -> object:
    # Imported at first use: a program that only declares agents needs no database driver, and
    # `celeriac --help` needs neither.
    if name not in _HOMES:
        raise AttributeError(f"module 'celeriac' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
