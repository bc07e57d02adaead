"""A workflow's code, driven by hand: what it asks for, and what it makes of its log."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from celeriac import Agent, Workflow, WorkflowContext, tool, workflow
from celeriac.codec import JsonValue
from celeriac.workflows.entry import Asked, EndKind, Entry, EntryKind, Turn
from celeriac.workflows.flow import Flow

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@tool(effect="none")
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


writer = Agent("writer", "openai:gpt-5")


def flow_of(declared: Workflow[Any], value: JsonValue = None) -> Flow:
    return Flow(declared, value, NOW)


def ends(asked: Sequence[Asked], *results: JsonValue, told: int = 0) -> list[Entry]:
    return [
        Entry(each, told + at, result)
        for at, (each, result) in enumerate(zip(asked, results, strict=True))
    ]


def test_a_workflow_asks_waits_and_ends() -> None:
    @workflow(tools=[double], agents=[writer], model="openai:gpt-5")
    async def everything(ctx: WorkflowContext, start: int) -> dict[str, Any]:
        first, second = await ctx.gather(
            ctx.activity(double, number=start), ctx.activity(double, number=start + 1)
        )
        text = await ctx.model("Write a note")
        said = await ctx.child(writer, text)
        await ctx.sleep(timedelta(hours=1))
        paid = await ctx.wait_event("paid")
        return {"sum": first + second, "said": said, "paid": paid, "now": ctx.now()}

    flow = flow_of(everything, 3)
    turn = flow.advance()
    assert [(each.kind, each.name, each.arguments) for each in turn.asked] == [
        (EntryKind.ACTIVITY, "double", {"number": 3}),
        (EntryKind.ACTIVITY, "double", {"number": 4}),
    ]
    assert turn.groups == {0: 0, 1: 0}
    flow.committed()

    log = ends(turn.asked, 6, 8)
    results: list[JsonValue] = ["a note", "it is said", None, {"cents": 5}]
    for told, result in enumerate(results, 2):
        turn = flow.advance(log)
        flow.committed()
        (asked,) = turn.asked
        log = [Entry(asked, told, result)]
    turn = flow.advance(log)

    assert turn.end is not None
    assert turn.end.kind is EndKind.COMPLETED
    assert turn.end.value == {
        "now": "2026-03-01T12:00:00Z",
        "sum": 14,
        "paid": {"cents": 5},
        "said": "it is said",
    }
    assert [each.kind for each in turn.asked] == [EntryKind.VALUE]


def test_other_code_than_the_log_diverges_and_names_both() -> None:
    @workflow(tools=[double])
    async def one(ctx: WorkflowContext) -> int:
        return await ctx.activity(double, number=1)

    @workflow
    async def other(ctx: WorkflowContext) -> None:
        await ctx.wait_event("paid")

    asked = flow_of(one).advance().asked

    turn: Turn = flow_of(other).advance([Entry(asked[0])])

    assert turn.end is not None
    assert turn.end.kind is EndKind.DIVERGED
    assert turn.end.error is not None
    message = str(turn.end.error["message"])
    assert "activity double" in message
    assert "event paid" in message
