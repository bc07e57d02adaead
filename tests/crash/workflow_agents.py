"""Workflows whose workers are killed (`test_workflows`), and how often what they asked for ran."""

import os
import signal
from pathlib import Path
from typing import Any

from celeriac import Agent, ToolContext, ToolError, WorkflowContext, tool, workflow
from celeriac.scripted import ScriptedModel, call, say
from tests.crash.agents import (
    QUEUE,
    _connect,
    _is_open,
    _noted,
    _wait_until_open,
    look,
    notify,
    tally,
    wait_at,
)

ACTIVITIES = 3
SIBLINGS = 3


@tool(effect="none")
def look_and_die(ctx: ToolContext, label: str, dies: bool) -> str:
    """Read, and if that is asked for, kill this process in the middle of the call, once."""
    with _noted(ctx):
        if dies and _is_first(ctx, label):
            os.killpg(os.getpgid(0), signal.SIGKILL)
    return label


@tool(effect="none")
def meet(ctx: ToolContext, label: str) -> str:
    """Begin, and end when the test opens the gate."""
    with _noted(ctx):
        _wait_until_open("meeting")
    return label


def _is_first(ctx: ToolContext, label: str) -> bool:
    try:
        (Path(os.environ["CELERIAC_TEST_POINTS_DIR"]) / f"{ctx.run_id}-{label}").open("x").close()
    except FileExistsError:
        return False
    return True


@workflow(tools=[tally], queue=QUEUE)
async def counting(ctx: WorkflowContext) -> list[str]:
    """One after another."""
    return [await ctx.activity(tally, label=str(number)) for number in range(ACTIVITIES)]


@workflow(tools=[tally], queue=QUEUE)
async def fanning(ctx: WorkflowContext, count: int) -> list[str]:
    """All at once."""
    calls = [ctx.activity(tally, label=str(number)) for number in range(count)]
    return list(await ctx.gather(*calls))


@workflow(tools=[tally, look_and_die], queue=QUEUE)
async def dying(ctx: WorkflowContext, at: int) -> list[str]:
    """One after another, and the call of the one at `at` kills its worker."""
    labels = []
    for number in range(ACTIVITIES):
        label = await ctx.activity(look_and_die, label=str(number), dies=number == at)
        labels.append(await ctx.activity(tally, label=label))
    return labels


@workflow(tools=[meet, tally], queue=QUEUE)
async def meeting(ctx: WorkflowContext) -> list[str]:
    """Side by side."""
    met = await ctx.gather(*(ctx.activity(meet, label=str(n)) for n in range(SIBLINGS)))
    return [await ctx.activity(tally, label=label) for label in met]


looker = Agent(
    "looker", ScriptedModel([call("look", label="it"), say("seen")]), tools=[look], queue=QUEUE
)


@workflow(tools=[tally], agents=[looker], queue=QUEUE)
async def trusting(ctx: WorkflowContext) -> str:
    """An agent's turns, and then what it found."""
    found: str = await ctx.child(looker, "go")
    return await ctx.activity(tally, label=found)


@workflow(tools=[notify, tally], queue=QUEUE)
async def notifying(ctx: WorkflowContext, order_id: str) -> str:
    """One call outside, between two of this database."""
    await ctx.activity(tally, label="before")
    told = await ctx.activity(notify, order_id=order_id)
    await ctx.activity(tally, label="after")
    return told


@workflow(tools=[wait_at, tally], queue=QUEUE)
async def branching(ctx: WorkflowContext) -> dict[str, Any]:
    """Branches that end in any order, and go on by themselves."""

    async def branch(label: str) -> str:
        first = await ctx.activity(tally, label=f"{label}1")
        second = await ctx.activity(tally, label=f"{label}2")
        return f"{first} {second}"

    at = ctx.now()
    left, right = await ctx.gather(branch("a"), branch("b"))
    return {"left": left, "right": right, "is_same_time": at <= ctx.now()}


@tool(effect="none")
def fail_until_mended(ctx: ToolContext) -> str:
    """Fail, until the test opens the gate."""
    with _noted(ctx), _connect() as connection:
        if not _is_open(connection, "mended"):
            raise ToolError("it is broken")
    return "mended"


@workflow(tools=[tally, fail_until_mended], queue=QUEUE)
async def mending(ctx: WorkflowContext) -> list[str]:
    """Branches, in one of which something is broken in the middle."""

    async def whole() -> list[str]:
        return [await ctx.activity(tally, label=f"whole{n}") for n in range(2)]

    async def broken() -> str:
        await ctx.activity(tally, label="before")
        await ctx.activity(fail_until_mended)
        return await ctx.activity(tally, label="after")

    labels, last = await ctx.gather(whole(), broken())
    return [*labels, last]
