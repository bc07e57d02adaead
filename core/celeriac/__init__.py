"""Agent runs that outlive the process that runs them."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celeriac.agent import Agent
    from celeriac.approval import Approval, Rule
    from celeriac.client import AsyncClient, Client
    from celeriac.conditions import When
    from celeriac.context import ToolContext
    from celeriac.context_policy import ContextPolicy
    from celeriac.contract import Contract
    from celeriac.errors import ActivityFailed, ToolError
    from celeriac.external_tools import external_tool
    from celeriac.limits import Limits
    from celeriac.memory import MemoryCandidate, MemoryPolicy
    from celeriac.plan import Plan, PlanStep, result_of
    from celeriac.plan.runner import PlanRunner
    from celeriac.price import Price
    from celeriac.rollback import Compensate, InBand
    from celeriac.sleeping import sleep, wake_at
    from celeriac.tools import tool
    from celeriac.workflows.context import WorkflowContext
    from celeriac.workflows.definition import Workflow, workflow
    from celeriac_tasks.task_tool import tool_from_task

__all__ = [
    "ActivityFailed",
    "Agent",
    "Approval",
    "AsyncClient",
    "Client",
    "Compensate",
    "ContextPolicy",
    "Contract",
    "InBand",
    "Limits",
    "MemoryCandidate",
    "MemoryPolicy",
    "Plan",
    "PlanRunner",
    "PlanStep",
    "Price",
    "Rule",
    "ToolContext",
    "ToolError",
    "When",
    "Workflow",
    "WorkflowContext",
    "external_tool",
    "result_of",
    "sleep",
    "tool",
    "tool_from_task",
    "wake_at",
    "workflow",
]

_HOMES = {
    "ActivityFailed": "celeriac.errors",
    "Agent": "celeriac.agent",
    "Approval": "celeriac.approval",
    "AsyncClient": "celeriac.client",
    "Client": "celeriac.client",
    "Compensate": "celeriac.rollback",
    "ContextPolicy": "celeriac.context_policy",
    "Contract": "celeriac.contract",
    "InBand": "celeriac.rollback",
    "Limits": "celeriac.limits",
    "MemoryCandidate": "celeriac.memory",
    "MemoryPolicy": "celeriac.memory",
    "Plan": "celeriac.plan",
    "PlanRunner": "celeriac.plan.runner",
    "PlanStep": "celeriac.plan",
    "Price": "celeriac.price",
    "Rule": "celeriac.approval",
    "ToolContext": "celeriac.context",
    "ToolError": "celeriac.errors",
    "When": "celeriac.conditions",
    "Workflow": "celeriac.workflows.definition",
    "WorkflowContext": "celeriac.workflows.context",
    "external_tool": "celeriac.external_tools",
    "result_of": "celeriac.plan",
    "sleep": "celeriac.sleeping",
    "tool": "celeriac.tools",
    "tool_from_task": "celeriac_tasks.task_tool",
    "wake_at": "celeriac.sleeping",
    "workflow": "celeriac.workflows.definition",
}


def __getattr__(name: str) -> object:
    # Imported at first use: a program that only declares agents needs no database driver, and
    # `celeriac --help` needs neither.
    if name not in _HOMES:
        raise AttributeError(f"module 'celeriac' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
