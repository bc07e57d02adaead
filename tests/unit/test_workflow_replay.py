"""Random workflows, whose entries end in random orders, go on in whichever process there is: one
that has the code in memory, one that is behind, one that begins at the start. All of them do the
same as the log says, and the code never waits for more than its groups say."""

# features: 004-01, 004-53
import hashlib
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from celeriac import ActivityFailed, WorkflowContext, tool, workflow
from celeriac.codec import JsonValue, dumps, stored_form
from celeriac.workflows.definition import Workflow
from celeriac.workflows.entry import Asked, End, EndKind, Entry, EntryKind, Turn
from celeriac.workflows.flow import Flow

NOW = datetime(2026, 3, 1, tzinfo=UTC)
Program = tuple[Any, ...]


@tool(effect="none")
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def programs() -> st.SearchStrategy[Program]:
    leaves: st.SearchStrategy[Program] = st.one_of(
        st.tuples(st.just("activity"), st.integers(0, 9)),
        st.tuples(st.just("retried"), st.integers(1, 2)),
        st.tuples(st.just("shared"), st.integers(0, 2)),
        st.tuples(st.just("sleep")),
        st.tuples(st.just("event"), st.sampled_from(["paid", "sent"])),
        st.tuples(st.just("value"), st.sampled_from(["now", "random", "uuid"])),
        st.tuples(st.just("version"), st.sampled_from(["a", "b"])),
    )

    def larger(parts: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
        several = st.lists(parts, min_size=1, max_size=4).map(tuple)
        return st.one_of(
            st.tuples(st.just("in turn"), several),
            st.tuples(st.just("gather"), several),
            st.tuples(st.just("first"), several),
            st.tuples(st.just("within"), parts),
            st.tuples(st.just("caught"), parts),
        )

    return st.recursive(leaves, larger, max_leaves=16)


@dataclass
class Performance:
    """Awaits a program's parts: entries as ctx gives them, everything else as a coroutine."""

    ctx: WorkflowContext
    shared: dict[int, Awaitable[Any]] = field(default_factory=dict)  # awaited in several places

    def begun(self, program: Program) -> Awaitable[Any]:
        ctx = self.ctx
        match program:
            case ("activity", number):
                return ctx.activity(double, number=number)
            case ("retried", retries):
                return ctx.activity(double, number=7, retries=retries)
            case ("shared", which):
                if which not in self.shared:
                    self.shared[which] = ctx.activity(double, number=which)
                return self.shared[which]
            case ("sleep",):
                return ctx.sleep(timedelta(hours=1))
            case ("event", name):
                return ctx.wait_event(name)
            case _:
                return self.performed(program)

    async def performed(self, program: Program) -> Any:
        ctx = self.ctx
        match program:
            case ("value", name):
                return str(getattr(ctx, name)())
            case ("version", name):
                return ctx.version(name)
            case ("in turn", parts):
                return [await self.begun(part) for part in parts]
            case ("gather", parts):
                return await ctx.gather(*(self.begun(part) for part in parts))
            case ("first", parts):
                return await ctx.first(*(self.begun(part) for part in parts))
            case ("within", part):
                return await ctx.within(60, self.begun(part))
            case ("caught", part):
                try:
                    return await self.begun(part)
                except (ActivityFailed, TimeoutError) as error:
                    return f"{type(error).__name__} {error}"
            case _:
                return await self.begun(program)


def workflow_of(program: Program) -> Workflow[Any]:
    @workflow(tools=[double])
    async def random_program(ctx: WorkflowContext) -> Any:
        return [await Performance(ctx).performed(program), ctx.random()]

    return random_program


@dataclass
class History:
    """The log as rows would hold it, and how it was after each turn."""

    entries: list[Entry] = field(default_factory=list)
    told: int = 0
    turns: list[tuple[list[Entry], Turn]] = field(default_factory=list)

    def open(self) -> list[Entry]:
        return [
            entry
            for entry in self.entries
            if entry.told is None and not entry.asked.kind.is_answered_at_once
        ]

    def end(self, entry: Entry, *, fails: bool, is_certain: bool) -> None:
        result: JsonValue = None
        error: dict[str, JsonValue] | None = None
        if entry.asked.kind is EntryKind.ACTIVITY and fails:
            error = {"kind": "tool_error", "message": "no", "is_certain": is_certain}
        elif entry.asked.kind is EntryKind.ACTIVITY:
            result = 2 * entry.asked.arguments["number"]  # type: ignore[index, operator, call-overload]  # what `double` is asked for
        elif entry.asked.kind is EntryKind.EVENT:
            result = self.told
        self.entries[entry.asked.number] = Entry(entry.asked, self.told, result, error)
        self.told += 1

    def commit(self, turn: Turn) -> None:
        assert [each.number for each in turn.asked] == [
            *range(len(self.entries), len(self.entries) + len(turn.asked))
        ]
        self.entries += [Entry(stored(asked)) for asked in turn.asked]
        self.turns.append((list(self.entries), turn))


def stored(asked: Asked) -> Asked:
    """As it is read back: a copy, without its terms."""
    arguments, value = stored_form(asked.arguments), stored_form(asked.value)
    return Asked(asked.number, asked.kind, asked.name, arguments, value)


def is_over(entries: Sequence[Entry], groups: dict[int, int]) -> bool:
    open_groups = {groups[n] for n in groups if entries[n].told is None}
    return any(group not in open_groups for group in groups.values())


@settings(max_examples=300, deadline=None)
@given(program=programs(), data=st.data())
def test_wherever_turns_are_cut_the_code_does_the_same(program: Program, data: Any) -> None:
    declared = workflow_of(program)
    history = History()
    processes = [Flow(declared, None, NOW), Flow(declared, None, NOW)]
    end: End | None = None
    moment = NOW

    while end is None:
        moment += timedelta(seconds=1)
        which = data.draw(st.sampled_from(["here", "there", "anew"]), label="process")
        at = {"here": 0, "there": 1, "anew": 0}[which]
        if which == "anew":
            processes[0] = Flow(declared, None, moment)
        flow = processes[at]
        turn = flow.advance(history.entries, moment)
        if data.draw(st.booleans(), label="an end comes in before the commit"):
            end_some(history, data, 1)
            turn = flow.advance(history.entries, moment)
        history.commit(turn)
        flow.committed()
        end = turn.end
        while end is None and not is_over(history.entries, dict(turn.groups)):
            assert history.open(), "the code waits for something that nobody makes"
            before = list(history.entries)
            assert quiet(declared, before, dict(turn.groups))
            end_some(history, data, data.draw(st.integers(1, 3)))

    assert end.kind in (EndKind.COMPLETED, EndKind.FAILED)
    assert "wait for ever" not in dumps(end.error)
    behind: list[Flow] = []
    for entries, turn in history.turns:
        behind.append(Flow(declared, None, NOW))
        for flow in behind:
            again = flow.advance(entries, NOW)
            assert again.asked == ()
            assert dict(again.groups) == dict(turn.groups)
            assert comparable(again.end) == comparable(turn.end)
    logged = steps_hash([entry.asked for entry in history.entries])
    assert [replayed(declared, history.entries) for _ in range(2)] == [logged, logged]


def end_some(history: History, data: Any, most: int) -> None:
    for _ in range(most):
        left = history.open()
        if not left:
            return
        entry = left[data.draw(st.integers(0, len(left) - 1), label="ends")]
        if entry.asked.kind is EntryKind.EVENT:  # the oldest of its name has the event
            entry = next(each for each in left if each.asked.name == entry.asked.name)
        fails = data.draw(st.integers(0, 3), label="fails") == 0
        history.end(entry, fails=fails, is_certain=data.draw(st.booleans()))


def quiet(declared: Workflow[Any], entries: Sequence[Entry], groups: dict[int, int]) -> bool:
    """Whether the code has nothing to do: none of its groups is over."""
    turn = Flow(declared, None, NOW).advance(entries)
    return not turn.asked and turn.end is None and set(turn.groups) <= set(groups)


def comparable(end: End | None) -> Any:
    return None if end is None else (end.kind, dumps(end.value), dumps(end.error))


class Recording(Flow):
    """Keeps what the code asked for, whether or not the log had it already."""

    def __init__(self, declared: Workflow[Any]) -> None:
        super().__init__(declared, None, NOW)
        self.asked: list[Asked] = []

    def ask(self, *args: Any, **named: Any) -> Asked:
        self.asked.append(super().ask(*args, **named))
        return self.asked[-1]


def replayed(declared: Workflow[Any], entries: Sequence[Entry]) -> str:
    flow = Recording(declared)
    flow.advance(entries)
    return steps_hash(flow.asked)


def steps_hash(asked: Sequence[Asked]) -> str:
    return hashlib.sha256("".join(each.fingerprint for each in asked).encode()).hexdigest()
