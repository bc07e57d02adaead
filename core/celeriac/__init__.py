"""Agent runs that outlive the process that runs them."""

from celeriac.agent import Agent
from celeriac.context import ToolContext
from celeriac.errors import ToolError
from celeriac.limits import Limits
from celeriac.tools import tool

__all__ = ["Agent", "Limits", "ToolContext", "ToolError", "tool"]
