"""One call of a tool as a step makes it, without a step."""

from typing import Any

from celeriac import ToolContext
from celeriac.ids import CallId, RunId, TenantId, ThreadId, UserId
from celeriac.tools import Tool
from celeriac_tasks.calling import Outcome, call_in_time


def called(tool: Tool[..., Any], attempt: int = 1, /, **arguments: Any) -> Outcome:
    """What a step would be told of the call."""
    context = ToolContext(
        tool=tool.name,
        run_id=RunId("r1"),
        thread_id=ThreadId("t1"),
        user_id=UserId("u1"),
        tenant_id=TenantId("default"),
        step=1,
        call_id=CallId("0.0"),
        idempotency_key="default:r1:0.0",
        attempt=attempt,
    )
    return call_in_time(tool, context, tool.validate(arguments))
