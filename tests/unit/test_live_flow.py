"""A workflow's code in memory, when a process lets go of it."""

from datetime import UTC, datetime

import pytest

from celeriac import WorkflowContext, tool, workflow
from celeriac.workflows.flow import Flow
from celeriac_tasks.live_flow import LiveFlow

RELEASED: list[str] = []


@tool(effect="none")
def release() -> None:
    """Release what was held."""


@workflow(tools=[release])
async def holding(ctx: WorkflowContext) -> None:
    try:
        await ctx.sleep(60)
    finally:
        await ctx.activity(release)
        RELEASED.append("released")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_code_that_is_let_go_of_asks_for_nothing() -> None:
    flow = Flow(holding, None, datetime.now(UTC))
    assert flow.advance().end is None
    live = LiveFlow(0)
    live._flow = flow

    del live  # as when another run takes its place, or another process its claim

    assert RELEASED == []
    assert flow._main is not None
    assert flow._main.is_dropped
