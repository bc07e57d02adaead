"""What a workflow's turns must get right besides: other processes in between, ends that come too
late, limits, and what the code and its tools are told."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from celeriac import Agent, Compensate, Limits, ToolContext, WorkflowContext, tool, workflow
from celeriac.errors import ActivityFailed, Conflict
from celeriac.ids import RunId, UserId
from celeriac.scripted import ScriptedModel, call, say
from celeriac.states import Phase, RunStatus
from celeriac_storage import children, mailbox
from celeriac_storage.claims import STRIKES_BEFORE_ATTENTION
from celeriac_tasks.step import take_step
from tests.family import Family, ended, let_time_pass
from tests.worker_in_process import Worker

SENT: list[int] = []


@tool(effect="none")
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@tool(effect="external")
def ship(sku: str) -> str:
    """Try to ship something, and learn nothing of it."""
    raise ConnectionError(f"no answer about {sku}")


@tool(effect="none")
def given(ctx: ToolContext) -> Any:
    """What the run was given."""
    return ctx.input


def call_back(_: ToolContext, number: int) -> None:
    """Undo `send`."""
    SENT.remove(number)


@tool(effect="external", rollback=Compensate(call_back))
def send(number: int) -> int:
    """Send something that can be called back."""
    SENT.append(number)
    return number


writer = Agent("writer", ScriptedModel([say("a poem")]))


@workflow(tools=[double])
async def returning(ctx: WorkflowContext) -> int:
    """Waits for something, then for something else, then for the first again."""
    doubled = ctx.activity(double, number=1)
    await ctx.first(doubled, ctx.sleep(60))
    await ctx.wait_event("paid")
    return await doubled


@workflow
async def own_id(ctx: WorkflowContext) -> str:
    return ctx.run_id


@workflow(tools=[given])
async def telling(ctx: WorkflowContext, left: int) -> Any:
    if left:
        ctx.continue_as_new(left - 1)
    return await ctx.activity(given)


@workflow(agents=[writer])
async def greedy(ctx: WorkflowContext, left: int) -> None:
    _ = ctx.child(writer, "one"), ctx.child(writer, "two")
    ctx.continue_as_new(left - 1)


@workflow(agents=[writer])
async def leaving(ctx: WorkflowContext, left: int) -> None:
    if left:
        _ = ctx.child(writer, "a poem")
        await ctx.sleep(timedelta(hours=1))
        ctx.continue_as_new(left - 1)
    await ctx.wait_event("paid")


@workflow(tools=[double])
async def scattering(ctx: WorkflowContext, left: int) -> None:
    """Begins calls that it does not wait for, a few at each turn."""
    for number in range(left):
        _ = ctx.activity(double, number=number), ctx.activity(double, number=-number)
        await ctx.wait_event("next")


clerk = Agent("clerk", ScriptedModel([call("double", number=1)] * 9), tools=[double])


@workflow(agents=[clerk])
async def employing(ctx: WorkflowContext) -> None:
    """Starts one that it does not wait for at each turn."""
    while True:
        _ = ctx.child(clerk, "work")
        await ctx.wait_event("next")


@workflow(tools=[ship])
async def shipping(ctx: WorkflowContext) -> str:
    try:
        return await ctx.activity(ship, sku="A-1")
    except ActivityFailed as failed:
        return failed.message


@workflow(tools=[double])
async def fan(ctx: WorkflowContext, count: int) -> int:
    return sum(await ctx.gather(*[ctx.activity(double, number=n) for n in range(count)]))


@workflow(tools=[send])
async def sending(ctx: WorkflowContext) -> int:
    return await ctx.activity(send, number=await ctx.activity(send, number=1) + 1)


WORKFLOWS: list[Agent] = [
    returning, own_id, telling, greedy, leaving, writer, shipping, fan, sending,
    scattering, employing, clerk,
]  # fmt: skip


@pytest.fixture
def family(database_url: str, broker_url: str) -> Iterator[Family]:
    family = Family(database_url, broker_url, WORKFLOWS)
    try:
        yield family
        assert family.violations() == []
    finally:
        family.close()


@pytest.fixture
def other(database_url: str, broker_url: str) -> Iterator[Worker]:
    """Another worker, with flows of its own."""
    other = Worker(database_url, broker_url, WORKFLOWS)
    other.process.start()
    try:
        yield other
    finally:
        other.process.stop()


def test_what_another_process_waited_for_is_not_taken_for_ours(
    family: Family, other: Worker
) -> None:
    run_id = family.start("returning", None)
    family.step(run_id)  # waits for the activity or for the time
    let_time_pass(family)
    take_step(other.process, run_id, 1)  # waits for the event alone
    with family.database.begin() as connection:
        mailbox.send(connection, run_id, "paid", None, UserId("shop"))
    family.step(run_id)  # waits for the activity again

    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, 2)


def test_the_code_knows_its_run(family: Family) -> None:
    run_id = family.start("own_id", None)

    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, run_id)


def test_a_tool_knows_what_its_workflow_was_given(family: Family) -> None:
    run_id = family.start("telling", 2)

    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, 0)


def test_beyond_its_limits_a_workflow_does_not_begin_as_new(family: Family) -> None:
    run_id = family.start("greedy", 9, limits=Limits(children=1))

    family.go_on()

    assert ended(family, run_id) == (RunStatus.FAILED, "limit_exceeded")
    assert "run.continued" not in family.events(run_id)


def test_calls_beyond_the_limit_are_not_begun(family: Family) -> None:
    run_id = family.start("fan", 4, limits=Limits(tool_calls=3))

    family.go_on()

    assert ended(family, run_id) == (RunStatus.FAILED, "limit_exceeded")
    assert family.rows("SELECT count(*) FROM celeriac.effects") == [(0,)]


def test_calls_that_go_on_from_earlier_turns_count_for_the_limit(family: Family) -> None:
    run_id = family.start("scattering", 3, limits=Limits(tool_calls=4))
    for _ in range(2):
        family.step(run_id)
        family.client.send_event(run_id, "next")

    family.step(run_id)

    assert ended(family, run_id) == (RunStatus.FAILED, "limit_exceeded")
    assert family.rows("SELECT count(*) FROM celeriac.effects") == [(4,)]


def test_what_runs_that_go_on_have_used_counts_for_those_that_are_started_beside_them(
    family: Family,
) -> None:
    run_id = family.start("employing", None, limits=Limits(steps=8))
    family.step(run_id)
    (first,) = family.children(run_id)
    family.step(first)
    family.client.send_event(run_id, "next")
    family.step(run_id)

    assert family.rows(
        "SELECT (limits ->> 'steps')::int FROM celeriac.runs WHERE parent_run_id = %s ORDER BY 1",
        run_id,
    ) == [(3,), (8,)], "6 steps are left, for two"
    for _ in range(5):
        family.step(first)
    family.client.send_event(run_id, "next")
    family.step(run_id)
    assert ended(family, run_id) == (RunStatus.FAILED, "limit_exceeded")
    error: Any = family.run(run_id).error
    assert error["message"] == (
        "the run has used 8 of the 8 steps that its limits allow: it can start no other"
    )
    assert [child.status for child in family.run(run_id).children] == [RunStatus.CANCELLED] * 2


def test_what_a_child_of_an_earlier_generation_uses_counts_for_the_workflow(
    family: Family,
) -> None:
    run_id = family.start("leaving", 1)
    family.step(run_id)
    (child,) = family.children(run_id)
    let_time_pass(family)
    with family.database.begin() as connection:
        connection.exec_driver_sql(
            "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (child,)
        )  # so that nobody cancels it
        family.step(run_id)
    assert "run.continued" in family.events(run_id)
    before = family.events(run_id)
    used = "SELECT child_steps_used, child_tokens_used FROM celeriac.runs WHERE run_id = %s"
    assert family.rows(used, run_id) == [(0, 0)]

    family.step(child)

    assert ended(family, child) == (RunStatus.COMPLETED, "a poem")
    ((steps, tokens),) = family.rows(used, run_id)
    assert steps == 1
    assert [(tokens,)] == family.rows(
        "SELECT input_tokens_used + output_tokens_used FROM celeriac.runs WHERE run_id = %s", child
    )
    assert family.events(run_id) == before


def test_what_a_child_uses_after_its_workflow_has_ended_is_shown_with_that(family: Family) -> None:
    run_id = family.start("leaving", 1)
    family.step(run_id)
    (child,) = family.children(run_id)
    with family.database.begin() as connection:
        connection.exec_driver_sql(
            "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (child,)
        )  # so that nobody cancels it
        family.client.cancel(run_id)
    family.step(child)

    shown = family.run(run_id)

    assert (shown.status, shown.use.input_tokens) == (RunStatus.CANCELLED, 0)
    assert family.run(child).status is RunStatus.COMPLETED
    assert shown.family_use == family.run(child).use
    assert shown.family_use.input_tokens > 0
    assert family.violations() == []


def test_all_calls_of_the_limit_may_be_made(family: Family) -> None:
    run_id = family.start("fan", 4, limits=Limits(tool_calls=4))

    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, 12)


def test_a_child_that_was_locked_when_its_workflow_began_as_new_is_cancelled_later(
    family: Family,
) -> None:
    run_id = family.start("leaving", 1)
    family.step(run_id)
    (child,) = family.children(run_id)
    let_time_pass(family)
    with family.database.begin() as connection:
        connection.exec_driver_sql(
            "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (child,)
        )
        family.step(run_id)
    assert family.run(child).status is RunStatus.QUEUED

    with family.database.connect() as connection:
        assert children.orphans(connection) == [(child, run_id)]


def test_the_code_is_told_that_nobody_knows_what_came_of_a_cancelled_call(family: Family) -> None:
    run_id = family.start("shipping", None)
    family.go_on()
    ((activity, phase),) = family.rows(
        "SELECT run_id, phase FROM celeriac.runs WHERE parent_run_id = %s", run_id
    )
    assert phase == Phase.WAITING_TOOL

    family.client.cancel(RunId(activity))
    family.go_on()

    told = "the call of ship was cancelled, and nobody knows whether it has taken effect"
    assert ended(family, run_id) == (RunStatus.COMPLETED, told)


def test_who_rolls_a_workflow_back_is_told_which_runs_to_roll_back(family: Family) -> None:
    SENT.clear()
    run_id = family.start("sending", None)
    family.go_on()
    made = family.rows(
        "SELECT run_id FROM celeriac.runs WHERE parent_run_id = %s ORDER BY finished_at DESC",
        run_id,
    )

    for (activity,) in made:
        with pytest.raises(Conflict, match=f"the latest first: {activity}"):
            family.client.rollback(run_id, by="bob")
        family.client.rollback(activity, by="bob")
        family.go_on()

    assert SENT == []
    with pytest.raises(Conflict, match="what has is undone"):
        family.client.rollback(run_id, by="bob")


def test_code_in_which_a_workflow_is_an_agent_is_named(
    family: Family, database_url: str, broker_url: str
) -> None:
    run_id = family.start("own_id", None)
    deployed = Worker(database_url, broker_url, [Agent("own_id", ScriptedModel([say("hello")]))])
    deployed.process.start()
    try:
        for _ in range(STRIKES_BEFORE_ATTENTION):
            take_step(deployed.process, run_id, 0)
    finally:
        deployed.process.stop()
    error = family.run(run_id).error
    assert isinstance(error, dict)
    assert "own_id was a workflow when the run began" in str(error["message"])

    family.client.retry(run_id)
    family.go_on()

    assert ended(family, run_id) == (RunStatus.COMPLETED, run_id)
