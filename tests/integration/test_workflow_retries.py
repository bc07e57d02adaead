"""Failed workflows are retried: what their logs say was done is not done again."""

# features: 004-04
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from celeriac import Agent, Compensate, ToolContext, ToolError, WorkflowContext, tool, workflow
from celeriac.errors import ActivityFailed, Conflict
from celeriac.ids import RunId, UserId
from celeriac.scripted import ScriptedModel, say
from celeriac.states import RunStatus
from celeriac_storage import mailbox
from celeriac_storage.resolving import NotDone, TookEffect
from celeriac_tasks.live_flow import FlowCache
from tests.family import Family, let_time_pass

DONE: list[str] = []
BROKEN: set[str] = set()


def call_back(_: ToolContext, label: str) -> None:
    """Undo `do`."""


@tool(effect="external", rollback=Compensate(call_back))
def do(label: str) -> str:
    """Do something, unless it is broken."""
    if label in BROKEN:
        raise ToolError(f"{label} is broken")
    DONE.append(label)
    return label


@tool(effect="external")
def ship(label: str) -> str:
    """Try to ship something, and learn nothing of it."""
    raise ConnectionError(f"no answer about {label}")


writer = Agent("writer", ScriptedModel([say("a poem")]))


@workflow(tools=[do], agents=[writer])
async def line(ctx: WorkflowContext) -> list[Any]:
    """One after another, with one of everything between."""
    token = str(ctx.uuid())
    first = await ctx.activity(do, label=f"first {token}")
    poem = await ctx.child(writer, "write")
    await ctx.sleep(timedelta(hours=1))
    paid = await ctx.wait_event("paid")
    is_new = ctx.version("new-way")
    last = await ctx.activity(do, label="last")
    return [first == f"first {token}", poem, paid, is_new, last]


@workflow(tools=[do])
async def branches(ctx: WorkflowContext) -> Any:
    """Side by side, each of three after one another."""

    async def branch(name: str) -> list[str]:
        return [await ctx.activity(do, label=f"{name}{n}") for n in range(3)]

    return await ctx.gather(branch("a"), branch("b"), branch("c"))


@workflow(tools=[do])
async def fan(ctx: WorkflowContext) -> Any:
    return await ctx.gather(*[ctx.activity(do, label=str(n)) for n in range(5)])


@workflow(tools=[do])
async def persistent(ctx: WorkflowContext) -> str:
    """Catches one failure, and fails by the next."""
    try:
        await ctx.activity(do, label="bad")
    except ActivityFailed:
        await ctx.activity(do, label="instead")
    return await ctx.activity(do, label="last", retries=1)


@workflow(tools=[do])
async def saga(ctx: WorkflowContext) -> str:
    await ctx.activity(do, label="reserve")
    try:
        return await ctx.activity(do, label="pay")
    except ActivityFailed:
        await ctx.activity(do, label="release")
        raise


@workflow(tools=[do])
async def buggy(ctx: WorkflowContext) -> str:
    label = await ctx.activity(do, label="one")
    if "code" in BROKEN:
        raise ValueError("a bug")
    return label


@workflow(tools=[do])
async def hasty(ctx: WorkflowContext) -> Any:
    """Fails while something else of it goes on."""
    first, other = ctx.activity(do, label="first"), ctx.activity(do, label="other")
    await first
    if "code" in BROKEN:
        raise ValueError("a bug")
    return await other


@workflow(tools=[do])
async def generations(ctx: WorkflowContext, left: int) -> str:
    label = await ctx.activity(do, label=f"{left}")
    if left:
        ctx.continue_as_new(left - 1)
    return await ctx.activity(do, label=f"last after {label}")


@workflow(tools=[do, ship])
async def shipping(ctx: WorkflowContext) -> Any:
    return [await ctx.activity(do, label="packed"), await ctx.activity(ship, label="it")]


@workflow(agents=[buggy])
async def above(ctx: WorkflowContext) -> Any:
    return await ctx.child(buggy)


WORKFLOWS: list[Agent] = [
    writer, line, branches, fan, persistent, saga, buggy, hasty, generations, shipping, above,
]  # fmt: skip


@pytest.fixture
def family(database_url: str, broker_url: str) -> Iterator[Family]:
    DONE.clear()
    BROKEN.clear()
    family = Family(database_url, broker_url, WORKFLOWS)
    try:
        yield family
        assert family.violations() == []
    finally:
        family.close()


def failed(family: Family, name: str, *broken: str, value: Any = None) -> RunId:
    """A run that has failed since these are broken, which they are no more."""
    BROKEN.update(broken)
    run_id = family.start(name, value)
    family.go_on()
    assert family.run(run_id).status is RunStatus.FAILED
    BROKEN.clear()
    return run_id


def retried(family: Family, run_id: RunId) -> RunId:
    """The retry, by a process that has nothing in memory, to where it stands."""
    family.worker.process.flows = FlowCache()
    retry = family.client.retry(run_id).run_id
    family.go_on()
    return retry


def result(family: Family, run_id: str) -> Any:
    run = family.run(run_id)
    assert run.status is RunStatus.COMPLETED, run.error
    return run.result


def test_what_was_done_of_each_kind_is_kept(family: Family) -> None:
    BROKEN.add("last")
    run_id = family.start("line", None)
    family.go_on()
    let_time_pass(family)
    family.go_on()
    with family.database.begin() as connection:
        mailbox.send(connection, run_id, "paid", 7, UserId("shop"))
    family.go_on()
    assert family.run(run_id).status is RunStatus.FAILED
    BROKEN.clear()

    retry = retried(family, run_id)

    assert retry != run_id
    assert result(family, retry) == [True, "a poem", 7, True, "last"]
    assert len(DONE) == 2
    run, origin = family.run(retry), family.run(run_id)
    assert (run.forked_from, run.thread_id) == (run_id, origin.thread_id)
    assert [entry.run_id for entry in run.activities[:3]] == [
        entry.run_id for entry in origin.activities[:3]
    ]
    assert family.client.retry(run_id).run_id == retry


@pytest.mark.parametrize("broken", [["a0"], ["b1"], ["a0", "c0"], ["a2", "b0"], ["a2", "b2", "c2"]])
def test_siblings_of_what_has_failed_are_done_once(family: Family, broken: list[str]) -> None:
    run_id = failed(family, "branches", *broken)
    before = list(DONE)

    retry = retried(family, run_id)

    labels = [[f"{name}{n}" for n in range(3)] for name in "abc"]
    assert result(family, retry) == labels
    assert before
    assert DONE[: len(before)] == before
    assert sorted(DONE) == sorted(label for of_branch in labels for label in of_branch)


def test_all_that_failed_in_a_gather_is_asked_for_anew_and_a_retry_may_fail_again(
    family: Family,
) -> None:
    run_id = failed(family, "fan", "1", "3")
    BROKEN.add("3")
    again = retried(family, run_id)
    assert family.run(again).status is RunStatus.FAILED
    BROKEN.clear()

    assert result(family, retried(family, again)) == ["0", "1", "2", "3", "4"]
    assert sorted(DONE) == ["0", "1", "2", "3", "4"]


def test_a_failure_that_the_code_has_caught_is_its_past(family: Family) -> None:
    BROKEN.update(["bad", "last"])
    run_id = family.start("persistent", None)
    family.go_on()
    let_time_pass(family)
    family.go_on()
    assert family.run(run_id).status is RunStatus.FAILED
    BROKEN.clear()

    assert result(family, retried(family, run_id)) == "last"
    assert DONE == ["instead", "last"]


def test_what_was_compensated_is_not_gone_on_from(family: Family) -> None:
    retry = retried(family, failed(family, "saga", "pay"))

    run = family.run(retry)
    assert run.status is RunStatus.NEEDS_ATTENTION
    assert "release" in str(run.error)
    assert "`celeriac cancel` this run, and start a new one" in str(run.error)
    assert DONE == ["reserve", "release"]


def test_a_bug_is_mended_without_doing_anything_again(family: Family) -> None:
    assert result(family, retried(family, failed(family, "buggy", "code"))) == "one"
    assert DONE == ["one"]


def test_a_retry_in_a_later_generation_goes_on_there(family: Family) -> None:
    retry = retried(family, failed(family, "generations", "last after 0", value=2))

    assert result(family, retry) == "last after 0"
    assert DONE == ["2", "1", "0", "last after 0"]


def test_what_had_not_ended_is_asked_for_anew(family: Family) -> None:
    BROKEN.add("code")
    run_id = family.start("hasty", None)
    family.step(run_id)
    first, other = (str(entry.run_id) for entry in family.run(run_id).activities)
    family.step(first)
    family.step(run_id)
    assert family.run(run_id).status is RunStatus.FAILED
    assert family.run(other).status is RunStatus.CANCELLED
    BROKEN.clear()

    assert result(family, retried(family, run_id)) == "other"
    assert DONE == ["first", "other"]


@pytest.mark.parametrize("took_effect", [True, False])
def test_an_unknown_outcome_is_settled_before(family: Family, took_effect: bool) -> None:
    run_id = family.start("shipping", None)
    family.go_on()
    (call,) = family.rows("SELECT run_id FROM celeriac.effects WHERE tool = 'ship'")
    family.client.cancel(call[0])
    family.go_on()
    assert family.run(run_id).status is RunStatus.FAILED
    with pytest.raises(Conflict, match=f"celeriac resolve {call[0]} 0.0"):
        family.client.retry(run_id)

    resolution = TookEffect("shipped") if took_effect else NotDone()
    family.client.resolve(call[0], "0.0", resolution)
    retry = retried(family, run_id)

    if took_effect:
        assert result(family, retry) == ["packed", "shipped"]
    else:
        assert family.rows("SELECT count(*) FROM celeriac.effects WHERE tool = 'ship'") == [(2,)]
    assert DONE == ["packed"]


def test_what_was_rolled_back_is_not_gone_on_from(family: Family) -> None:
    run_id = failed(family, "generations", "last after 0", value=0)
    (made, _) = family.run(run_id).activities
    assert made.run_id is not None
    family.client.rollback(made.run_id)
    family.go_on()

    with pytest.raises(Conflict, match="rolled back"):
        family.client.retry(run_id)


def test_a_child_is_retried_by_its_parent(family: Family) -> None:
    parent = failed(family, "above", "code")
    (child,) = family.children(parent)
    with pytest.raises(Conflict, match="answers a call"):
        family.client.retry(child)
    assert result(family, retried(family, parent)) == "one"


def test_a_workflow_is_not_forked(family: Family) -> None:
    run_id = failed(family, "buggy", "code")
    with pytest.raises(Conflict, match="cannot be forked"):
        family.client.fork(run_id, at=1)
