"""A workflow's code, driven by hand: what it asks for, and what it makes of its log."""

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel

from celeriac import (
    ActivityFailed,
    Agent,
    Approval,
    Workflow,
    WorkflowContext,
    sleep,
    tool,
    workflow,
)
from celeriac.codec import JsonValue, dumps, stored_form
from celeriac.errors import InvalidAgent, InvalidArguments, InvalidInput, StaleFlow
from celeriac.workflows.entry import Asked, End, EndKind, Entry, EntryKind, Turn
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


class Played:
    """A run of a workflow, whose entries end when a test says so."""

    def __init__(self, declared: Workflow[Any], value: JsonValue = None) -> None:
        self.flow = Flow(declared, value, NOW)
        self.log: list[Entry] = []
        self.told = 0
        self.turn = Turn()
        self.go_on()

    def go_on(self) -> Turn:
        self.turn = self.flow.advance(self.log)
        self.flow.committed()
        self.log += [Entry(asked) for asked in self.turn.asked]
        return self.turn

    def end(self, number: int, result: JsonValue = None, **error: JsonValue) -> Turn:
        """The entry ends, with an error if its parts are given, and the code goes on."""
        told = Entry(self.log[number].asked, self.told, result, error or None)
        self.log[number] = told
        self.told += 1
        return self.go_on()

    @property
    def asked(self) -> list[str]:
        return [f"{entry.asked.kind} {entry.asked.name}" for entry in self.log]

    @property
    def result(self) -> JsonValue:
        assert self.turn.end is not None
        assert self.turn.end.kind is EndKind.COMPLETED, self.turn.end
        return self.turn.end.value

    @property
    def failure(self) -> dict[str, JsonValue]:
        assert self.turn.end is not None
        assert self.turn.end.kind is EndKind.FAILED
        assert self.turn.end.error is not None
        return self.turn.end.error


def diverged(declared: Workflow[Any], log: Sequence[Entry]) -> str:
    turn = Flow(declared, None, NOW).advance(log)
    assert turn.end is not None
    assert turn.end.kind is EndKind.DIVERGED
    assert turn.asked == ()
    assert turn.end.error is not None
    return str(turn.end.error["message"])


@workflow(tools=[double])
async def twice(ctx: WorkflowContext) -> int:
    return await ctx.activity(double, number=await ctx.activity(double, number=1))


# ------------------------------------------------------------------------------ divergence


def test_other_code_than_the_log_diverges_and_names_both() -> None:
    @workflow
    async def other(ctx: WorkflowContext) -> None:
        await ctx.wait_event("paid")

    told = diverged(other, Played(twice).log)

    assert 'entry 0 of the log is activity double {"number":1}' in told
    assert "asks for event paid" in told


def test_other_arguments_than_the_log_has_are_another_question() -> None:
    @workflow(tools=[double])
    async def other(ctx: WorkflowContext) -> int:
        return await ctx.activity(double, number=2)

    told = diverged(other, Played(twice).log)

    assert 'asks for activity double {"number":2}' in told


def test_code_that_waits_where_the_log_goes_on_diverges() -> None:
    played = Played(twice)
    played.end(0, 2)

    @workflow(tools=[double])
    async def other(ctx: WorkflowContext) -> None:
        held = ctx.activity(double, number=1)
        await ctx.gather(held, ctx.first(waits_for_ever(held)))

    async def waits_for_ever(held: Any) -> None:
        await held
        await other_side

    other_side: Any = None

    told = diverged(other, played.log)

    assert 'entry 1 of the log is activity double {"number":2}' in told


def test_code_that_ends_where_the_log_goes_on_diverges() -> None:
    played = Played(twice)
    played.end(0, 2)

    @workflow(tools=[double])
    async def shorter(ctx: WorkflowContext) -> int:
        return await ctx.activity(double, number=1)

    @workflow(tools=[double])
    async def broken(ctx: WorkflowContext) -> int:
        await ctx.activity(double, number=1)
        raise ValueError("a bug of the new version")

    assert "there the code ends" in diverged(shorter, played.log)
    assert "start a new one" not in diverged(shorter, played.log)
    assert "fails: ValueError: a bug of the new version" in diverged(broken, played.log)


def test_code_that_asks_for_less_before_a_known_end_diverges() -> None:
    played = Played(twice)
    played.end(0, 2)
    played.log[1] = Entry(played.log[1].asked, 0, 4)
    played.log[0] = Entry(played.log[0].asked, 1, 2)

    assert "entry 1 of the log" in diverged(twice, played.log)


def test_an_input_that_the_code_does_not_take_any_more_diverges() -> None:
    @workflow
    async def stricter(ctx: WorkflowContext, start: int) -> int:  # noqa: ARG001 - as every workflow
        return start

    turn = Flow(stricter, "three", NOW).advance()

    assert turn.end is not None
    assert turn.end.kind is EndKind.DIVERGED


def test_a_log_that_another_process_wrote_otherwise_makes_a_flow_stale() -> None:
    @workflow
    async def drawn(ctx: WorkflowContext) -> None:
        ctx.random()
        await ctx.wait_event("paid")

    here, there = Flow(drawn, None, NOW), Flow(drawn, None, NOW)
    here.advance()

    with pytest.raises(StaleFlow, match="written by another process"):
        here.advance([Entry(asked) for asked in there.advance().asked])
    with pytest.raises(StaleFlow, match="interrupted"):
        here.advance()


def test_an_end_that_is_missing_before_another_makes_a_flow_stale() -> None:
    played = Played(twice)

    with pytest.raises(StaleFlow, match="some are missing"):
        played.flow.advance([Entry(played.log[0].asked, 1, 2)])


def test_code_that_was_interrupted_is_not_gone_on_with() -> None:
    @workflow
    async def interrupted(ctx: WorkflowContext) -> None:
        ctx.now()
        raise KeyboardInterrupt

    flow = Flow(interrupted, None, NOW)

    with pytest.raises(KeyboardInterrupt):
        flow.advance()
    with pytest.raises(StaleFlow):
        flow.advance()


# ------------------------------------------------------------------------------ what is asked


def test_arguments_that_a_tool_cannot_take_are_refused_at_the_line() -> None:
    @workflow(tools=[double])
    async def careless(ctx: WorkflowContext) -> str:
        try:
            await ctx.gather(ctx.activity(double, number="three"))
        except InvalidArguments as error:
            return str(error)
        return "nothing was refused"

    played = Played(careless)

    assert "number" in str(played.result)
    assert played.asked == []


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda ctx: ctx.activity(double, number=1), "double is none of the tools"),
        (lambda ctx: ctx.tool("triple", {}), "triple is none of the tools"),
        (lambda ctx: ctx.child(writer, "x"), "writer is none of the agents"),
        (lambda ctx: ctx.model("Say it"), "has no model"),
        (lambda ctx: ctx.sleep(-1), "duration=-1"),
        (lambda ctx: ctx.sleep_until(datetime(2026, 1, 1)), "offset"),
        (lambda ctx: ctx.wait_event(""), "empty"),
        (lambda ctx: ctx.first(), "nothing is given"),
        (lambda ctx: ctx.gather(3), "neither what ctx gives"),
        (lambda ctx: ctx.wait_approval("pay", {"to": object()}), "cannot be written as JSON"),
    ],
)
def test_what_cannot_be_asked_for_fails_before_anything_is_written(
    ask: Callable[[WorkflowContext], Any], told: str
) -> None:
    @workflow
    async def careless(ctx: WorkflowContext) -> None:
        await ask(ctx)

    played = Played(careless)

    assert told in str(played.failure["message"])
    assert played.asked == []


class Order(BaseModel):
    sku: str
    price: Decimal
    due: date


@tool(effect="none")
async def priced(order: Order) -> tuple[Order, int]:
    """Look a price up."""
    return order, 1


@workflow(tools=[priced])
async def buy(ctx: WorkflowContext, order: Order) -> Order:
    found, count = await ctx.activity(priced, order=order)
    assert isinstance(found, Order)
    return found.model_copy(update={"price": found.price * (count + 1)})


@workflow(agents=[buy])
async def buy_more(ctx: WorkflowContext) -> str:
    bought = await ctx.child(buy, Order(sku="A-1", price=Decimal("1.50"), due=date(2026, 3, 1)))
    return f"{bought.sku} {bought.price!r}"


def test_what_comes_back_has_the_type_that_the_code_says() -> None:
    order: JsonValue = {"sku": "A-1", "price": "1.50", "due": "2026-03-01"}
    parent = Played(buy_more)
    asked = parent.log[0].asked
    assert (asked.kind, asked.name, asked.arguments) == (EntryKind.CHILD, "buy", order)

    child = Played(buy, asked.arguments)
    child.end(0, [order, 1])
    parent.end(0, child.result)

    assert child.result == {**order, "price": "3.00"}  # type: ignore[dict-item]  # it is an object
    assert parent.result == "A-1 Decimal('3.00')"


def test_an_answer_of_a_model_has_the_type_that_was_asked_for() -> None:
    @workflow(model="openai:gpt-5")
    async def asking(ctx: WorkflowContext) -> str:
        order = await ctx.model("What was ordered?", output=Order, instructions="Be exact.")
        return order.sku

    played = Played(asking)
    asked = played.log[0].asked
    assert asked.arguments == {"prompt": "What was ordered?", "instructions": "Be exact."}
    assert isinstance(asked.terms, dict)
    assert isinstance(asked.terms["schema"], dict)

    played.end(0, {"sku": "A-1", "price": "1.50", "due": "2026-03-01"})

    assert played.result == "A-1"


def test_what_does_not_fit_its_type_is_an_error_at_the_line() -> None:
    played = Played(buy, {"sku": "A-1", "price": "1.50", "due": "2026-03-01"})

    played.end(0, "something else")

    assert "result of priced" in str(played.failure["message"])


def test_people_decide_and_may_change_the_details() -> None:
    @workflow
    async def paying(ctx: WorkflowContext) -> JsonValue:
        decision = await ctx.wait_approval(
            "Pay the bill", {"cents": 500}, approval=Approval(roles=["finance"])
        )
        return [decision.is_approved, decision.reason, dict(decision.arguments)]

    played = Played(paying)
    asked = played.log[0].asked
    assert asked.arguments == {"intent": "Pay the bill", "details": {"cents": 500}}
    assert asked.terms == Approval(roles=["finance"]).to_json()

    played.end(0, {"is_approved": True, "reason": "due", "arguments": {"cents": 400}})

    assert played.result == [True, "due", {"cents": 400}]


# ------------------------------------------------------------------------------ errors


def test_a_failure_can_be_caught_and_fails_the_workflow_otherwise() -> None:
    @workflow(tools=[double])
    async def careful(ctx: WorkflowContext) -> JsonValue:
        try:
            return await ctx.activity(double, number=1)
        except ActivityFailed as failed:
            return [failed.kind, failed.message, failed.run_id, failed.is_certain]

    caught, uncaught = Played(careful), Played(twice)
    error: dict[str, JsonValue] = {"kind": "tool_error", "message": "no stock", "run_id": "r-1"}
    caught.end(0, **error)
    uncaught.end(0, **error)

    assert caught.result == ["tool_error", "no stock", "r-1", False]
    assert uncaught.failure["kind"] == "activity_failed"
    assert uncaught.failure["message"] == "activity double has failed: no stock"
    assert uncaught.failure["cause"] == error


def test_an_exception_of_the_code_fails_the_run_and_says_where() -> None:
    @workflow
    async def broken(ctx: WorkflowContext) -> None:  # noqa: ARG001 - as every workflow
        raise ValueError("no such thing")

    failure = Played(broken).failure

    assert failure["kind"] == "workflow_failed"
    assert failure["message"] == "ValueError: no such thing"
    assert re.fullmatch(r"test_workflows\.py:\d+, in broken", str(failure["at"]))


def test_an_error_that_a_library_raises_is_told_with_the_line_of_the_code() -> None:
    @workflow
    async def sleeping(ctx: WorkflowContext) -> None:  # noqa: ARG001
        await asyncio.sleep(1)

    @workflow(tools=[double])
    async def calling(ctx: WorkflowContext) -> int:  # noqa: ARG001
        return double(number=2)

    @workflow(tools=[double])
    async def misspelt(ctx: WorkflowContext) -> int:
        return await ctx.activity(double, nmber=2)

    for broken in (sleeping, calling, misspelt):
        place = str(Played(broken).failure["at"])
        assert re.fullmatch(rf"test_workflows\.py:\d+, in {broken.name}", place)


def test_gather_waits_for_all_and_then_raises_the_first_error() -> None:
    @workflow(tools=[double])
    async def both(ctx: WorkflowContext) -> None:
        await ctx.gather(*(ctx.activity(double, number=number) for number in range(3)))

    played = Played(both)
    assert played.turn.groups == {0: 0, 1: 0, 2: 0}
    played.end(2, kind="tool_error", message="the last")
    played.end(1, kind="tool_error", message="the second")
    assert played.turn.end is None
    played.end(0, 0)

    assert played.failure["message"] == "activity double has failed: the second"


@pytest.mark.parametrize(
    "wait",
    [
        lambda: asyncio.sleep(1),
        lambda: asyncio.sleep(0),
        lambda: asyncio.to_thread(print),
    ],
    ids=["sleep", "yield", "thread"],
)
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_what_is_not_of_ctx_cannot_be_awaited(wait: Callable[[], Any]) -> None:
    @workflow
    async def foreign(ctx: WorkflowContext) -> None:  # noqa: ARG001 - as every workflow
        await wait()

    failure = Played(foreign).failure

    assert "can await what ctx gives it, and nothing else" in str(failure["message"])


def test_asyncio_stays_out_where_the_thread_has_a_loop() -> None:
    @workflow
    async def foreign(ctx: WorkflowContext) -> str:  # noqa: ARG001 - as every workflow
        try:
            asyncio.get_running_loop().call_soon(print)
        except TypeError as error:
            return str(error)
        return "something was scheduled that no replay knows of"

    async def hosted() -> JsonValue:
        result = Played(foreign).result
        await asyncio.sleep(0)  # the loop is there again
        return result

    assert "a workflow runs without asyncio" in str(asyncio.run(hosted()))


def test_a_tool_is_not_called_by_the_code_itself() -> None:
    @workflow(tools=[double])
    async def forgetful(ctx: WorkflowContext) -> int:  # noqa: ARG001 - as every workflow
        return double(2)

    assert "write `await ctx.activity(double" in str(Played(forgetful).failure["message"])
    assert double(2) == 4


def test_code_that_waits_for_itself_fails_instead_of_waiting_for_ever() -> None:
    @workflow
    async def circular(ctx: WorkflowContext) -> None:
        held: list[Any] = []

        async def waits() -> None:
            await held[0]

        held.append(ctx.gather(waits()))
        await held[0]

    assert "would wait for ever" in str(Played(circular).failure["message"])


def test_a_log_holds_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celeriac.workflows.flow.MAX_ENTRIES", 3)

    @workflow
    async def endless(ctx: WorkflowContext) -> None:
        while True:
            ctx.now()

    @workflow
    async def listening(ctx: WorkflowContext) -> None:
        await ctx.gather(*(ctx.wait_event("paid") for _ in range(4)))

    for declared in (endless, listening):
        played = Played(declared)
        assert "ctx.continue_as_new" in str(played.failure["message"])
        assert len(played.log) == 3


# ------------------------------------------------------------------------------ several at once


def test_the_first_ends_the_coroutines_that_lose_and_leaves_the_rest() -> None:
    closed: list[str] = []

    @workflow(tools=[double])
    async def racing(ctx: WorkflowContext) -> JsonValue:
        async def reminders() -> None:
            try:
                while True:
                    await ctx.gather(reminder())
            finally:
                closed.append("reminders")

        async def reminder() -> None:
            try:
                await ctx.sleep(60)
            finally:
                closed.append("reminder")

        work = ctx.activity(double, number=1)
        which, data = await ctx.first(work, reminders(), ctx.wait_event("paid"))
        return [which, data, await work]

    played = Played(racing)
    assert sorted(played.asked) == ["activity double", "event paid", "timer sleep"]
    paid = played.asked.index("event paid")

    turn = played.end(paid, "paid")
    assert closed == ["reminder", "reminders"]
    assert turn.groups == {0: 0}
    played.end(0, 2)

    assert played.result == [2, "paid", 2]


def test_a_coroutine_that_loses_ends_with_what_its_parts_have_begun() -> None:
    closed: list[str] = []

    @workflow
    async def racing(ctx: WorkflowContext) -> Any:
        async def reminder() -> None:
            try:
                await ctx.sleep(60)
            finally:
                closed.append("reminder")

        async def begins() -> Any:
            return ctx.gather(reminder())

        async def both() -> None:
            ((reminders,),) = await ctx.gather(ctx.gather(begins()))
            await reminders

        return await ctx.first(both(), ctx.wait_event("paid"))

    played = Played(racing)
    played.end(played.asked.index("event paid"), "paid")

    assert played.result == [1, "paid"]
    assert closed == ["reminder"]


def test_a_coroutine_that_is_to_end_cannot_await() -> None:
    @workflow
    async def racing(ctx: WorkflowContext) -> None:
        async def stubborn() -> None:
            try:
                await ctx.sleep(60)
            finally:
                await ctx.sleep(1)

        await ctx.first(stubborn(), ctx.wait_event("paid"))

    played = Played(racing)
    played.end(played.asked.index("event paid"), "paid")

    assert "awaits something in its `finally`" in str(played.failure["message"])


def test_a_workflow_that_exits_ends_itself_and_not_its_worker() -> None:
    @workflow
    async def leaving(ctx: WorkflowContext) -> None:
        sys.exit(f"goodbye from {ctx.run_id}")

    turn = Flow(leaving, None, NOW, run_id="r-1").advance()

    assert turn.end is not None
    assert "SystemExit('goodbye from r-1')" in dumps(turn.end.error)


def test_what_takes_too_long_is_a_timeout_and_its_event_is_not_lost() -> None:
    @workflow
    async def patient(ctx: WorkflowContext) -> JsonValue:
        told: list[JsonValue] = []
        while len(told) < 2:
            try:
                told.append(await ctx.wait_event("paid", timeout=timedelta(hours=1)))
            except TimeoutError as error:
                told.append(str(error))
        return told

    played = Played(patient)
    assert played.asked == ["timer sleep", "event paid"]
    turn = played.end(0)  # time is up
    assert played.asked == ["timer sleep", "event paid", "timer sleep"]
    assert turn.groups == {1: 1, 2: 2}
    played.end(1, "the first")

    assert played.result == ["it has not ended within 3600 s", "the first"]


def test_an_event_between_two_waits_is_kept() -> None:
    @workflow(tools=[double])
    async def patient(ctx: WorkflowContext) -> Any:
        with suppress(TimeoutError):
            await ctx.wait_event("paid", timeout=60)
        await ctx.activity(double, number=1)
        return await ctx.wait_event("paid")

    played = Played(patient)
    played.end(0)
    assert played.asked[2:] == ["activity double"]
    played.end(1, "nobody waits just now")
    played.end(2, 2)

    assert played.result == "nobody waits just now"
    assert played.asked.count("event paid") == 1


def test_events_go_to_those_who_wait_in_their_order() -> None:
    @workflow
    async def listening(ctx: WorkflowContext) -> JsonValue:
        async def waits() -> JsonValue:
            return [await ctx.wait_event("paid"), await ctx.wait_event("paid")]

        return stored_form(await ctx.gather(waits(), waits()))

    played = Played(listening)
    for at in range(4):
        played.end(played.asked.index("event paid", at), at)

    assert played.result == [[0, 2], [1, 3]]


def test_calls_are_made_anew_only_if_they_certainly_had_no_effect() -> None:
    @workflow(tools=[double])
    async def retrying(ctx: WorkflowContext) -> int:
        return await ctx.activity(double, number=1, retries=2)

    certain, unclear = Played(retrying), Played(retrying)
    for number, least in ((0, 1.0), (3, 2.0)):
        certain.end(number, kind="tool_error", message="no", is_certain=True)
        sleep = certain.log[number + 2].asked
        assert isinstance(sleep.arguments, dict)
        assert least <= float(str(sleep.arguments["seconds"])) <= 2 * least
        certain.end(number + 2)
    certain.end(6, kind="tool_error", message="still no", is_certain=True)
    unclear.end(0, kind="timeout", message="nobody knows")

    assert certain.asked == [
        *["activity double", "value random", "timer sleep"] * 2,
        "activity double",
    ]
    assert "still no" in str(certain.failure["message"])
    assert unclear.asked == ["activity double"]
    assert "nobody knows" in str(unclear.failure["message"])


# ------------------------------------------------------------------------------ versions


def changed_after(number: int) -> Workflow[Any]:
    @workflow(tools=[double])
    async def changed(ctx: WorkflowContext) -> JsonValue:
        for at in range(3):
            if at == number and ctx.version("quicker"):
                return ["quicker", ctx.version("quicker")]
            await ctx.activity(double, number=at)
        return ["as ever", ctx.version("quicker")]

    return changed


def test_a_run_that_came_past_a_change_does_as_ever_and_others_what_is_new() -> None:
    old, new = Played(changed_after(9)), Played(changed_after(1))
    old.end(0, 0)
    new.end(0, 0)

    assert new.result == ["quicker", True]
    assert new.asked == ["activity double", "version quicker"]
    old.flow = Flow(changed_after(1), None, NOW)
    old.go_on()
    old.end(1, 2)
    old.end(2, 4)
    assert old.result == ["as ever", False]
    assert old.asked == ["activity double"] * 3


def test_a_version_that_the_code_does_not_ask_for_any_more_is_passed_over() -> None:
    @workflow(tools=[double])
    async def with_version(ctx: WorkflowContext) -> None:
        ctx.version("older")
        ctx.version("newer")
        await ctx.activity(double, number=1)

    @workflow(tools=[double])
    async def with_one(ctx: WorkflowContext) -> bool:
        is_new = ctx.version("newer")
        await ctx.activity(double, number=1)
        return is_new

    @workflow(tools=[double])
    async def with_none(ctx: WorkflowContext) -> None:
        await ctx.activity(double, number=1)

    for cleaned, result in ((with_one, True), (with_none, None)):
        played = Played(with_version)
        played.flow = Flow(cleaned, None, NOW)
        played.end(2, 2)
        assert played.result == result


def test_a_run_continues_as_new_and_nothing_catches_that() -> None:
    @workflow
    async def endless(ctx: WorkflowContext, round: int) -> None:  # noqa: A002
        try:
            await ctx.sleep(1)
            ctx.continue_as_new(round + 1)
        except BaseException:
            ctx.now()
            raise

    played = Played(endless, 3)
    turn = played.end(0)

    assert turn.end == End(EndKind.CONTINUED, 4)
    assert turn.asked == ()


# ------------------------------------------------------------------------------ declarations


@pytest.mark.parametrize(
    ("declare", "told"),
    [
        (lambda: workflow(not_async), "async def"),  # type: ignore[arg-type]  # as it says
        (lambda: workflow(no_context), "takes ctx"),
        (lambda: workflow(tools=[writer.as_tool()])(twice.function), "start it with ctx.child"),
        (lambda: workflow(tools=[sleep])(twice.function), "use ctx.sleep"),
        (lambda: workflow(tools=[double, double])(twice.function), "two tools"),
        (lambda: workflow(agents=[double])(twice.function), "neither an agent nor"),  # type: ignore[list-item]  # as it says
        (lambda: workflow(name="No Name")(twice.function), "cannot be an agent's name"),
        (twice.as_handoff, "cannot take a conversation over"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(
    declare: Callable[[], object], told: str
) -> None:
    with pytest.raises(InvalidAgent, match=re.escape(told)):
        declare()


async def no_context() -> None: ...


def not_async(ctx: WorkflowContext) -> None: ...


def test_a_workflow_is_registered_with_its_code_and_what_it_may_start() -> None:
    definition = buy_more.definition()

    assert definition["name"] == "buy_more"
    assert definition["model"] == "none"
    assert definition["workflow"] == {"code_hash": buy_more.code_hash, "agents": ["buy"]}
    assert buy.agent_hash != buy_more.agent_hash
    assert changed_after(1).code_hash == changed_after(2).code_hash != twice.code_hash


def test_an_input_is_checked_before_a_run_is_started() -> None:
    with pytest.raises(InvalidInput, match="price: required"):
        buy.validate_input({"sku": "A-1", "due": "2026-03-01"})
    with pytest.raises(InvalidInput, match="null"):
        twice.validate_input("what nobody would read")
