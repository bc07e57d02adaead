"""A runner of plans whose workers are killed in the middle of steps (`test_plans`)."""

import os
import signal
import time

from sqlalchemy import text

from celeriac import ToolContext, ToolError, tool
from celeriac.plan.runner import PlanRunner
from tests.crash.agents import QUEUE, _connect, _is_open, _noted
from tests.crash.workflow_agents import _is_first, look_and_die, meet


@tool(effect="transactional")
def tally_and_die(ctx: ToolContext, label: str, dies: bool) -> str:
    """Write a row in the step's transaction, and if that is asked for, kill this process before it
    commits, once."""
    with _noted(ctx):
        ctx.connection.execute(
            text("INSERT INTO crash.tally VALUES (:run_id, :call_id, :label)"),
            {"run_id": ctx.run_id, "call_id": ctx.call_id, "label": label},
        )
        if dies and _is_first(ctx, label):
            os.killpg(os.getpgid(0), signal.SIGKILL)
    return label


@tool(effect="external")
def fragile(ctx: ToolContext, label: str) -> str:
    """Fail, without an effect, until the test opens the gate."""
    with _noted(ctx), _connect() as connection:
        if not _is_open(connection, "mended"):
            raise ToolError("it is out of order")
    return label


@tool(effect="none")
def linger(ctx: ToolContext, label: str) -> str:
    """Take long enough for others to begin."""
    with _noted(ctx):
        time.sleep(0.2)
    return label


@tool(effect="none", exclusive=True)
def linger_alone(ctx: ToolContext, label: str) -> str:
    """The same, while nobody else may."""
    with _noted(ctx):
        time.sleep(0.2)
    return label


runner = PlanRunner(
    "plans", [look_and_die, tally_and_die, meet, fragile, linger, linger_alone], queue=QUEUE
)
