"""Random workflows fail, and are retried with what was done: nothing of it is asked for again, what
they failed by is asked for anew, and a log that the code does not follow is noticed."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from celeriac import ActivityFailed, WorkflowContext, tool, workflow
from celeriac.workflows.definition import Workflow
from celeriac.workflows.entry import End, EndKind, Entry
from celeriac.workflows.flow import Flow
from tests.unit.test_workflow_replay import History, end_some, is_over, programs, workflow_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@tool(effect="none")
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


@workflow(tools=[double])
async def branches(ctx: WorkflowContext) -> Any:
    async def branch(number: int) -> int:
        doubled = await ctx.activity(double, number=number)
        return await ctx.activity(double, number=doubled)

    return await ctx.gather(branch(1), branch(2))


@workflow(tools=[double])
async def branches_of_another_kind(ctx: WorkflowContext) -> Any:
    return await ctx.gather(ctx.activity(double, number=5), ctx.activity(double, number=2))


@workflow(tools=[double])
async def versioned(ctx: WorkflowContext) -> Any:
    is_new = ctx.version("other-number")
    first = ctx.activity(double, number=7 if is_new else 1)
    return await ctx.gather(first, ctx.activity(double, number=2))


def kept(entries: Sequence[Entry], because_of: Sequence[int]) -> list[Entry]:
    """As `celeriac_storage.kept_entries` keeps them."""
    done = [
        entry for entry in entries
        if entry.told is not None and entry.asked.number not in because_of
    ]  # fmt: skip
    done.sort(key=lambda entry: entry.told or 0)
    ends = {entry.asked.number for entry in done}
    answered = [entry for entry in entries if entry.asked.kind.is_answered_at_once]
    holes = {entry.asked.number for entry in entries} - ends
    holes -= {entry.asked.number for entry in answered}
    if holes:
        until = max([min(holes), *ends])
        answered = [entry for entry in answered if entry.asked.number < until]
    again = [Entry(entry.asked, told, entry.result, entry.error) for told, entry in enumerate(done)]
    return sorted([*again, *answered], key=lambda entry: entry.asked.number)


def failed(history: History, declared: Workflow[Any], data: Any) -> End:
    """The end of a run of which any call may fail."""
    flow = Flow(declared, None, NOW)
    while True:
        turn = flow.advance(history.entries, NOW)
        history.commit(turn)
        flow.committed()
        if turn.end is not None:
            return turn.end
        while not is_over(history.entries, dict(turn.groups)):
            end_some(history, data, 1)


def words(program: Any) -> set[str]:
    found = {program[0]}
    for part in program[1:]:
        parts = part if isinstance(part, tuple) and part and isinstance(part[0], tuple) else (part,)
        for each in parts:
            if isinstance(each, tuple):
                found |= words(each)
    return found


@settings(max_examples=300, deadline=None)
@given(program=programs(), data=st.data())
def test_a_retry_goes_on_with_all_that_was_done_or_notices_that_it_cannot(
    program: Any, data: Any
) -> None:
    declared = workflow_of(program)
    history = History()
    end = failed(history, declared, data)
    if end.kind is not EndKind.FAILED:
        return
    log = kept(history.entries, end.because_of)
    logged = {entry.asked.number for entry in log}

    flow = Flow(declared, None, NOW)
    turn = flow.advance(log, NOW)

    if turn.end is not None and turn.end.kind is EndKind.DIVERGED:
        # Where a failure decides what goes on, what came after it may not come again: one that is
        # caught in one place, and that the run fails by in another, is asked for anew.
        is_shared = {"caught", "shared"} <= words(program)
        assert is_shared or {"first", "within"} & words(program), turn.end.error
        assert turn.asked == ()
        return
    asked = [each.number for each in turn.asked]
    assert not logged.intersection(asked)
    whole = sorted([*logged, *asked])
    assert whole == [*range(len(whole))]
    # From here on its log is as any: a process that begins at the start does the same.
    log += [Entry(each) for each in turn.asked]
    again = Flow(declared, None, NOW).advance(log, NOW)
    assert again.asked == ()
    assert dict(again.groups) == dict(turn.groups)
    assert [*turn.groups] or turn.end is not None


def test_what_failed_is_asked_for_anew_and_its_siblings_are_not() -> None:
    flow = Flow(branches, None, NOW)
    first, second = flow.advance().asked
    (third,) = flow.advance(
        [
            Entry(first, 0, error={"kind": "tool_error", "message": "no"}),
            Entry(second, 1, 4),
        ]
    ).asked
    end = flow.advance([Entry(third, 2, 8)]).end
    assert end is not None
    assert list(end.because_of) == [0]

    retry = Flow(branches, None, NOW)
    (anew,) = retry.advance([Entry(second, 0, 4), Entry(third, 1, 8)]).asked
    assert (anew.number, anew.arguments) == (0, {"number": 1})
    retry.committed()
    (last,) = retry.advance([Entry(anew, 2, 2)]).asked
    assert last.number == 3
    end = retry.advance([Entry(last, 3, 4)]).end
    assert end is not None
    assert end.value == [4, 8]


def test_what_is_asked_in_a_hole_may_be_another_question_and_all_else_may_not() -> None:
    first, second = Flow(branches, None, NOW).advance().asked
    third = Flow(branches, None, NOW).advance([Entry(first), Entry(second, 0, 4)]).asked[0]

    (anew,) = Flow(branches_of_another_kind, None, NOW).advance([Entry(second, 0, 4)]).asked
    assert (anew.number, anew.arguments) == (0, {"number": 5})

    log = [Entry(second, 0, 4), Entry(third, 1, 8)]
    turn = Flow(branches_of_another_kind, None, NOW).advance(log)
    assert turn.end is not None
    assert turn.end.kind is EndKind.DIVERGED
    assert turn.asked == ()


def test_a_change_is_not_made_in_a_hole() -> None:
    first, second = Flow(branches, None, NOW).advance().asked
    assert first.number == 0

    (anew,) = Flow(versioned, None, NOW).advance([Entry(second, 0, 4)]).asked

    assert (anew.number, anew.arguments) == (0, {"number": 1})


def test_all_that_came_together_with_the_error_is_behind_it_and_what_was_caught_is_not() -> None:
    @workflow(tools=[double])
    async def caught_first(ctx: WorkflowContext) -> Any:
        with suppress(ActivityFailed):
            await ctx.gather(ctx.activity(double, number=0), ctx.activity(double, number=1))

        async def branch(number: int) -> None:
            await ctx.gather(ctx.activity(double, number=number), ctx.sleep(1))

        try:
            await ctx.gather(branch(2), branch(3), ctx.activity(double, number=4))
        except ActivityFailed as failed:
            raise ValueError("it cannot be doubled") from failed

    flow = Flow(caught_first, None, NOW)
    entries: list[Entry] = []
    end: End | None = None
    while end is None:
        turn = flow.advance(entries)
        flow.committed()
        told = len(entries)
        error = {"kind": "tool_error", "message": "no"}
        entries = [
            *entries,
            *(
                Entry(each, told + at, error=None if each.kind == "timer" else dict(error))
                for at, each in enumerate(turn.asked)
            ),
        ]
        end = turn.end

    calls = [entry.asked.number for entry in entries if entry.asked.kind == "activity"]
    assert list(end.because_of) == calls[2:]


def test_what_the_code_has_begun_ends_with_it_at_once() -> None:
    ended: list[str] = []

    @workflow(tools=[double])
    async def leaving(ctx: WorkflowContext) -> str:
        async def branch() -> None:
            try:
                await ctx.activity(double, number=1)
            finally:
                ended.append("branch")

        await ctx.first(ctx.sleep(1), ctx.gather(branch()))
        return "gone"

    flow = Flow(leaving, None, NOW)
    slept, _ = flow.advance().asked
    turn = flow.advance([Entry(slept, 0)])

    assert turn.end is not None
    assert ended == ["branch"]
