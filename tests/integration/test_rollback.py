"""Undoing what a run did: each call by its tool's own declaration, once, in reverse order."""

# features: 004-38, 004-39, 004-40, 004-42
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac import Approval, Compensate, InBand, ToolContext, ToolError, tool
from celeriac.client import NotDone, TookEffect
from celeriac.errors import CeleriacError, Conflict, InvalidInput, NotAllowed, UnknownRun
from celeriac.ids import CallId, RunId
from celeriac.recovery import NotDone as Lost
from celeriac.recovery import Retry
from celeriac.reports import Call, Run
from celeriac.scripted import Turn, call
from celeriac.states import EffectState, RunStatus
from celeriac.tools import Tool
from celeriac_storage.audit import audit
from celeriac_storage.audit_checks import rollbacks
from celeriac_storage.audit_checks.check import Check
from celeriac_storage.database import Database, sqlstate
from celeriac_tasks import acting, external_call
from tests.undo_shop import BOOK, LOOK, MAIL, PUBLISH, SHIP, TAKE, Away, Shop, Tools

MakeShop = Callable[..., Shop]


@pytest.fixture
def shops(database: Database, broker_url: str) -> Iterator[MakeShop]:
    """Makes a shop; at the end the audit must be clean."""
    with ExitStack() as stack:

        def make(*turns: Turn, cls: type[Tools] = Tools, **tools: Any) -> Shop:
            shop = Shop(database, broker_url, cls(**tools), turns)
            stack.callback(shop.close)
            stack.callback(lambda: _assert_clean(shop))
            return shop

        yield make


def _assert_clean(shop: Shop) -> None:
    assert shop.violations() == []


def report(run: Run) -> Any:
    assert run.status is RunStatus.COMPLETED, run
    return run.result


# How each kind is undone --------------------------------------------------------------------------


def test_an_in_band_undo_in_the_same_database_takes_the_call_back(shops: MakeShop) -> None:
    shop = shops(TAKE)
    run_id = shop.done()
    assert shop.stock == 9

    undo = shop.roll_back(run_id)

    assert report(undo) == {
        "undone": [{"call_id": "0.0", "tool": "take"}],
        "compensated": [],
        "not_undone": [],
    }
    assert shop.stock == 10
    assert shop.tools.undone == [("take", 9)], "an undo may know what the call returned"
    assert shop.states(run_id) == {"take": "rolled_back"}


def test_a_run_and_its_rollback_tell_of_each_other(shops: MakeShop) -> None:
    shop = shops(TAKE)
    run_id = shop.done()
    before = list(shop.client.events(run_id))
    row = shop.worker.row(run_id)

    undo = shop.roll_back(run_id)

    (effect,) = undo.effects
    assert (undo.kind, undo.rolls_back, undo.agent) == ("rollback", run_id, "shop")
    assert undo.thread_id != row.thread_id
    assert (effect.tool, effect.rolls_back) == ("take.undo", Call(run_id, CallId("0.0")))
    assert effect.key == f"default:{run_id}:0.0:undo"
    original = shop.client.get(run_id)
    assert original.rollbacks == [undo.run_id]
    assert original.effects[0].rolled_back_by == Call(undo.run_id, effect.call_id)
    assert [step.kind.value for step in undo.steps] == ["think", "act", "think"]
    assert shop.rows("SELECT FROM celeriac.model_calls WHERE run_id = %s", undo.run_id) == []
    assert list(shop.client.events(run_id)) == before, "a run that has ended gets no events"
    assert shop.worker.row(run_id) == row
    requested = [e for e in shop.client.events(undo.run_id) if e.type == "rollback.requested"]
    assert requested[0].data["by"] == "alice"
    (noted,) = shop.rows("SELECT * FROM celeriac.audit WHERE action = 'run.rollback'")
    assert (noted.actor, noted.object, noted.outcome) == ("alice", run_id, "allowed")


def test_a_compensation_is_a_second_effect_and_the_first_stays_as_it_is(shops: MakeShop) -> None:
    shop = shops(BOOK)
    run_id = shop.done()
    (before,) = shop.rows("SELECT * FROM celeriac.effects WHERE run_id = %s", run_id)

    undo = shop.roll_back(run_id)

    assert report(undo)["compensated"] == [{"call_id": "0.0", "tool": "book"}]
    assert shop.bookings == [500, -500]
    assert shop.rows("SELECT * FROM celeriac.effects WHERE run_id = %s", run_id) == [before]
    assert undo.effects[0].rolls_back == Call(run_id, CallId("0.0"))
    assert undo.effects[0].state is EffectState.COMMITTED


def test_an_undo_elsewhere_is_called_with_a_key_of_its_own_and_told_the_calls(
    shops: MakeShop,
) -> None:
    shop = shops(SHIP)
    run_id = shop.done()

    undo = shop.roll_back(run_id)

    assert report(undo)["undone"] == [{"call_id": "0.0", "tool": "ship"}]
    key = f"default:{run_id}:0.0"
    assert shop.tools.carrier.cancelled == {f"{key}:undo": key}
    assert shop.states(run_id) == {"ship": "rolled_back"}


def test_what_only_reads_is_not_undone_and_the_latest_call_is_undone_first(
    shops: MakeShop,
) -> None:
    shop = shops(LOOK, TAKE, BOOK, LOOK, SHIP)
    run_id = shop.done()

    undo = shop.roll_back(run_id)

    assert [name for name, _ in shop.tools.undone] == ["ship", "book", "take"]
    assert [call["tool"] for call in report(undo)["undone"]] == ["ship", "take"]
    assert shop.states(run_id)["look"] == "committed"


def test_the_call_that_took_effect_last_is_undone_first(shops: MakeShop) -> None:
    both = replace(TAKE, calls=(*TAKE.calls, *BOOK.calls))
    shop = shops(both, approval=Approval(roles=["stock"]))
    shop.client.set_principal("alice", roles=["stock"], by="root")
    run_id = shop.worker.start("shop")
    shop.go_on(run_id)
    assert shop.states(run_id) == {"take": "proposed", "book": "committed"}
    (proposal,) = shop.client.approvals(by="alice")
    shop.client.approve(proposal.approval_id, by="alice")
    shop.go_on(run_id)

    shop.roll_back(run_id)

    assert [name for name, _ in shop.tools.undone] == ["take", "book"]


def test_only_what_came_from_the_step_on_is_undone(shops: MakeShop) -> None:
    shop = shops(TAKE, BOOK, SHIP)
    run_id = shop.done()

    undo = shop.roll_back(run_id, from_step=2)

    assert [name for name, _ in shop.tools.undone] == ["ship", "book"]
    assert shop.states(run_id) == {"take": "committed", "book": "committed", "ship": "rolled_back"}
    assert report(undo)["not_undone"] == []


def test_what_cannot_be_taken_back_is_reported(shops: MakeShop) -> None:
    shop = shops(TAKE, PUBLISH)
    run_id = shop.done()

    undo = shop.roll_back(run_id)

    assert report(undo)["not_undone"] == [
        {"call_id": "2.0", "tool": "publish", "why": "it cannot be taken back"}
    ]
    assert shop.stock == 10
    assert "nothing is left to undo" in str(refusal(shop, run_id))


def test_a_rollback_of_nothing_but_the_irreversible_says_so_and_changes_nothing(
    shops: MakeShop,
) -> None:
    shop = shops(LOOK, PUBLISH)
    run_id = shop.done()

    said = str(refusal(shop, run_id))

    assert "what did take effect cannot be taken back: 2.0 (publish)" in said
    assert shop.rows("SELECT FROM celeriac.runs WHERE kind = 'rollback'") == []


class PartlyUndone(Tools):
    def all(self) -> list[Tool[..., Any]]:
        def take_down(ctx: ToolContext) -> dict[str, Any]:  # noqa: ARG001 - its shape
            return {"is_partial": True, "left": ["copies elsewhere"]}

        @tool(effect="external", rollback=InBand(take_down))
        def publish(what: str) -> str:
            """Tell the world."""
            return what

        return [publish]


def test_what_could_be_undone_only_in_part_is_reported_so(shops: MakeShop) -> None:
    shop = shops(PUBLISH, cls=PartlyUndone)
    run_id = shop.done()

    told = report(shop.roll_back(run_id))

    left = {"is_partial": True, "left": ["copies elsewhere"]}
    assert told["partly_undone"] == [{"call_id": "0.0", "tool": "publish", "report": left}]
    assert told["undone"] == []


def test_people_are_asked_for_an_undo_by_its_name(shops: MakeShop) -> None:
    shop = shops(MAIL)

    undo = shop.roll_back(shop.done())

    types = [event.type for event in shop.client.events(undo.run_id)]
    assert types[-3:] == ["undo.requested", "effect.unknown", "run.needs_attention"]


def test_a_call_that_another_version_of_its_tool_made_is_for_people(shops: MakeShop) -> None:
    shop = shops(TAKE)
    run_id = shop.done()
    take, *others = shop.agent.tools
    shop.new_worker([replace(take, version="2"), *others])

    undo = shop.roll_back(run_id)

    assert undo.status is RunStatus.NEEDS_ATTENTION
    assert "version 1 of the tool made it" in str(undo.error)
    assert shop.tools.undone == []


def test_another_version_that_comes_after_the_plan_undoes_nothing(shops: MakeShop) -> None:
    shop = shops(TAKE, MAIL)
    run_id = shop.done()
    undo = shop.roll_back(run_id)
    assert undo.status is RunStatus.NEEDS_ATTENTION  # the letter is for people
    take, *others = shop.agent.tools
    shop.new_worker([replace(take, version="2"), *others])

    undo = shop.resolved(undo, CallId("0.0"), NotDone())

    assert undo.status is RunStatus.NEEDS_ATTENTION
    assert "this code has version 2" in str(undo.error)
    assert (shop.tools.undone, shop.stock) == ([], 9)
    shop.new_worker(shop.agent.tools)
    shop.client.retry(undo.run_id, by="bob")
    shop.go_on(undo.run_id)
    assert len(report(shop.client.get(undo.run_id))["undone"]) == 1


def test_code_without_the_tool_stops_the_rollback_before_anything_is_undone(
    shops: MakeShop,
) -> None:
    shop = shops(TAKE, SHIP)
    run_id = shop.done()
    shop.new_worker(shop.agent.tools[1:])

    undo = shop.roll_back(run_id)

    assert undo.status is RunStatus.NEEDS_ATTENTION
    assert "tool take of call 0.0 is no longer part of agent shop" in str(undo.error)
    assert shop.tools.undone == []
    shop.new_worker(shop.agent.tools)
    shop.client.retry(undo.run_id)
    assert shop.go_on(undo.run_id).status == "completed"
    assert [name for name, _ in shop.tools.undone] == ["ship", "take"]


# People -------------------------------------------------------------------------------------------


def test_what_only_people_can_undo_waits_for_their_word(shops: MakeShop) -> None:
    shop = shops(TAKE, MAIL)
    run_id = shop.done()

    undo = shop.roll_back(run_id)

    assert (undo.status, undo.effects[0].state) == ("needs_attention", "unknown")
    assert f"celeriac resolve {undo.run_id} 0.0 --committed JSON" in str(undo.error)
    assert shop.stock == 9, "the earlier call waits for the later one"
    with pytest.raises(Conflict, match="cannot be retried before the outcome"):
        shop.client.retry(undo.run_id)
    _assert_clean(shop)

    undo = shop.resolved(undo, CallId("0.0"), TookEffect({"letter": "taken back"}))

    assert [call["tool"] for call in report(undo)["undone"]] == ["mail", "take"]
    assert shop.states(run_id) == {"take": "rolled_back", "mail": "rolled_back"}
    assert shop.stock == 10


def test_what_a_person_will_not_undo_is_reported_with_their_name(shops: MakeShop) -> None:
    shop = shops(TAKE, MAIL)
    run_id = shop.done()
    undo = shop.roll_back(run_id)

    undo = shop.resolved(undo, CallId("0.0"), NotDone())

    (left,) = report(undo)["not_undone"]
    assert (left["tool"], "bob has said that it will not be undone" in left["why"]) == (
        "mail",
        True,
    )
    assert shop.states(run_id) == {"take": "rolled_back", "mail": "committed"}


@pytest.mark.parametrize("kind", ["transactional", "external"])
def test_an_undo_that_fails_asks_a_person_and_a_retry_tries_it_with_the_same_key(
    shops: MakeShop, kind: str
) -> None:
    shop = shops(BOOK, TAKE if kind == "transactional" else SHIP)
    shop.tools.failures = [ToolError("the shelf is full")]
    shop.tools.carrier.trouble = [ToolError("the shelf is full")]
    run_id = shop.done()

    undo = shop.roll_back(run_id)

    assert undo.status is RunStatus.NEEDS_ATTENTION
    assert "the shelf is full" in str(undo.error)
    for way in ("retry", f"resolve {undo.run_id} 0.0 --committed"):
        assert f"celeriac {way}" in str(undo.error)
    assert shop.stock == (9 if kind == "transactional" else 10), "what a failed undo wrote is gone"
    assert shop.bookings == [500], "the earlier call waits"
    _assert_clean(shop)

    shop.client.retry(undo.run_id, by="bob")
    shop.go_on(undo.run_id)
    undo = shop.client.get(undo.run_id)

    assert report(undo)["not_undone"] == []
    assert (undo.effects[0].attempt, shop.bookings) == (2, [500, -500])
    assert len(set(shop.tools.carrier.requests)) <= 1


@pytest.mark.parametrize("turn", [TAKE, SHIP])
@pytest.mark.parametrize("is_done", [True, False])
def test_a_person_settles_an_undo_that_failed(shops: MakeShop, turn: Turn, is_done: bool) -> None:
    shop = shops(BOOK, turn)
    shop.tools.failures = [ToolError("the shelf is full")]
    shop.tools.carrier.trouble = [ToolError("the shelf is full")]
    run_id = shop.done()
    undo = shop.roll_back(run_id)
    tool_name = turn.calls[0].tool

    undo = shop.resolved(undo, CallId("0.0"), TookEffect("by hand") if is_done else NotDone())

    if is_done:
        assert report(undo)["undone"] == [{"call_id": "2.0", "tool": tool_name}]
    else:
        (left,) = report(undo)["not_undone"]
        assert "the shelf is full" in left["why"]
        assert "bob has said" in left["why"]
    assert shop.states(run_id)[tool_name] == ("rolled_back" if is_done else "committed")
    assert shop.bookings == [500, -500], "and it goes on with the earlier call"


def test_an_undo_is_tried_again_by_its_own_policy_before_anybody_is_asked(
    shops: MakeShop,
) -> None:
    shop = shops(SHIP, retry=Retry(attempts=3, on=(Away,)))
    shop.tools.carrier.trouble = [Away("nobody there"), Away("nobody there")]
    undo = shop.roll_back(shop.done())

    for _ in range(2):
        assert (undo.status, undo.phase) == ("paused", "waiting_timer")
        shop.wake()
        shop.go_on(undo.run_id)
        undo = shop.client.get(undo.run_id)

    assert report(undo)["not_undone"] == []
    assert undo.effects[0].attempt == 3


def test_an_undo_whose_answer_got_lost_is_found_at_its_target(shops: MakeShop) -> None:
    shop = shops(SHIP)
    shop.tools.carrier.loses_answers = 1
    undo = shop.roll_back(shop.done())
    assert undo.effects[0].state is EffectState.UNKNOWN

    shop.wake()
    shop.go_on(undo.run_id)

    assert report(shop.client.get(undo.run_id))["undone"] == [{"call_id": "0.0", "tool": "ship"}]
    assert len(shop.tools.carrier.requests) == 1


def test_an_undo_whose_answer_got_lost_is_for_a_person_where_nobody_can_look(
    shops: MakeShop,
) -> None:
    shop = shops(SHIP, verifies=False)
    shop.tools.carrier.loses_answers = 1
    run_id = shop.done()

    undo = shop.roll_back(run_id)

    assert (undo.status, undo.effects[0].state) == ("needs_attention", "unknown")
    undo = shop.resolved(undo, CallId("0.0"), NotDone())
    assert report(undo)["undone"] == [{"call_id": "0.0", "tool": "ship"}]
    assert len(shop.tools.carrier.requests) == 2, "said not to be done, it is made again"
    assert len(set(shop.tools.carrier.requests)) == 1, "under the same key"


# Once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("turn", "is_done"), [(TAKE, True), (TAKE, False), (SHIP, True)])
def test_a_person_settles_an_undo_that_kills_its_workers(
    shops: MakeShop, monkeypatch: pytest.MonkeyPatch, turn: Turn, is_done: bool
) -> None:
    shop = shops(BOOK, turn)
    run_id = shop.done()

    def die(name: str, _: int = -1) -> None:  # stands for the death of the process
        if name in ("act.before_tool", "act.before_in_flight"):
            raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(acting, "reach", die)
        patch.setattr(external_call, "reach", die)
        undo = shop.roll_back(run_id)
    assert (undo.status, undo.effects[0].attempt) == (RunStatus.NEEDS_ATTENTION, 0)
    with pytest.raises(Conflict, match="only a call whose outcome is unknown"):
        shop.client.resolve(undo.run_id, CallId("0.1"), NotDone(), by="bob")

    undo = shop.resolved(undo, CallId("0.0"), TookEffect(None) if is_done else NotDone())

    told = report(undo)
    assert [call["call_id"] for call in told["undone"]] == ["2.0"] * is_done
    assert [call["call_id"] for call in told["not_undone"]] == ["2.0"] * (not is_done)
    assert [call["call_id"] for call in told["compensated"]] == ["0.0"]


class Orders(Tools):
    """With a tool whose target never shows what it reports."""

    def all(self) -> list[Tool[..., Any]]:
        def call_back(ctx: ToolContext) -> None:
            self.undone.append(("order", ctx.undoes_key))

        how = Compensate(call_back)

        @tool(effect="external", rollback=how, verify=lambda _: Lost(), visibility_seconds=0.0)
        def order(ctx: ToolContext) -> str:
            """Order something."""
            return ctx.idempotency_key

        return [*super().all(), order]


def known_bad(shop: Shop) -> RunId:
    """A run whose only call is known to be bad."""
    run_id = shop.worker.start("shop")
    for _ in range(6):
        shop.go_on(run_id)
        shop.wake()
    assert shop.states(run_id) == {"order": "known_bad"}
    return run_id


def test_what_is_declared_not_done_during_the_rollback_is_not_undone(shops: MakeShop) -> None:
    shop = shops(call("order"), cls=Orders)
    run_id = known_bad(shop)
    undo_id = shop.client.rollback(run_id, by="alice").run_id
    shop.worker.step(undo_id)  # planned
    shop.client.resolve(run_id, CallId("0.0"), NotDone(), by="bob")

    shop.go_on(undo_id)

    (left,) = report(shop.client.get(undo_id))["not_undone"]
    assert (left["call_id"], "nothing to undo" in left["why"]) == ("0.0", True)
    assert shop.tools.undone == []


def test_what_is_undone_cannot_be_declared_not_done(shops: MakeShop) -> None:
    shop = shops(call("order"), cls=Orders)
    run_id = known_bad(shop)
    assert len(report(shop.roll_back(run_id))["compensated"]) == 1

    with pytest.raises(Conflict, match="is undone already"):
        shop.client.resolve(run_id, CallId("0.0"), NotDone(), by="bob")


class Hurried(Tools):
    """With a tool whose undo is an async function in disguise."""

    def all(self) -> list[Tool[..., Any]]:
        async def never(ctx: ToolContext) -> None:
            self.undone.append(("order", ctx.undoes_key))

        def disguised(ctx: ToolContext) -> Any:
            return never(ctx)

        @tool(effect="external", rollback=InBand(disguised))
        def order(ctx: ToolContext) -> str:
            """Order something."""
            return ctx.idempotency_key

        return [*super().all(), order]


def test_an_undo_that_nobody_awaits_has_failed(shops: MakeShop) -> None:
    shop = shops(call("order"), cls=Hurried)
    run_id = shop.done()

    undo = shop.roll_back(run_id)

    assert undo.status is RunStatus.NEEDS_ATTENTION
    assert "returned an awaitable" in str(undo.error)
    assert shop.states(run_id) == {"order": "committed"}


class Returns(Tools):
    """With a tool whose undo its target never shows."""

    def all(self) -> list[Tool[..., Any]]:
        how = InBand(lambda _: "TAKEN BACK", verify=lambda _: Lost())

        @tool(effect="external", rollback=how)
        def order(ctx: ToolContext) -> str:
            """Order something."""
            return ctx.idempotency_key

        return [*super().all(), order]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_person_settles_an_undo_that_its_target_does_not_show(
    shops: MakeShop, *, is_done: bool
) -> None:
    shop = shops(call("order"), cls=Returns)
    run_id = shop.done()
    undo_id = shop.client.rollback(run_id, by="alice").run_id
    for _ in range(3):
        shop.go_on(undo_id)
        shop.wake()
    undo = shop.client.get(undo_id)
    assert undo.effects[0].state is EffectState.KNOWN_BAD
    assert "--committed JSON` if it was undone by hand" in str(undo.error)

    undo = shop.resolved(undo, CallId("0.0"), TookEffect("by hand") if is_done else NotDone())

    told = report(undo)
    assert (len(told["undone"]), len(told["not_undone"])) == (is_done, not is_done)
    assert shop.states(run_id) == {"order": "rolled_back" if is_done else "committed"}


def test_a_second_rollback_undoes_only_what_is_left(shops: MakeShop) -> None:
    shop = shops(TAKE, BOOK, SHIP)
    run_id = shop.done()
    shop.roll_back(run_id, from_step=4)

    undo = shop.roll_back(run_id)

    assert [name for name, _ in shop.tools.undone] == ["ship", "book", "take"]
    assert len(undo.effects) == 2
    with pytest.raises(Conflict, match="nothing is left to undo"):
        shop.client.rollback(run_id)
    assert shop.bookings == [500, -500]


def test_what_was_given_up_can_be_undone_by_a_later_rollback_under_the_same_key(
    shops: MakeShop,
) -> None:
    shop = shops(SHIP)
    shop.tools.carrier.trouble = [ToolError("closed")]
    run_id = shop.done()
    first = shop.resolved(shop.roll_back(run_id), CallId("0.0"), NotDone())
    assert len(report(first)["not_undone"]) == 1

    second = shop.roll_back(run_id)

    assert report(second)["undone"] == [{"call_id": "0.0", "tool": "ship"}]
    assert len(shop.tools.carrier.requests) == 2
    assert len(set(shop.tools.carrier.requests)) == 1


def test_a_cancelled_rollback_leaves_the_rest_to_the_next(shops: MakeShop) -> None:
    shop = shops(TAKE, SHIP)
    run_id = shop.done()
    started = shop.client.rollback(run_id, by="alice")
    for _ in range(2):  # plan, and the latest call
        shop.worker.step(started.run_id)
    shop.client.cancel(started.run_id)

    undo = shop.roll_back(run_id)

    assert report(undo)["undone"] == [{"call_id": "0.0", "tool": "take"}]
    assert [name for name, _ in shop.tools.undone] == ["ship", "take"]


def test_an_undo_of_unknown_outcome_in_a_cancelled_rollback_is_settled_first(
    shops: MakeShop,
) -> None:
    shop = shops(SHIP, verifies=False)
    shop.tools.carrier.loses_answers = 1
    run_id = shop.done()
    first = shop.roll_back(run_id)
    shop.client.cancel(first.run_id)

    with pytest.raises(Conflict, match=f"celeriac resolve {first.run_id} 0.0"):
        shop.client.rollback(run_id)
    shop.client.resolve(first.run_id, "0.0", TookEffect("yes"))

    assert shop.states(run_id) == {"ship": "rolled_back"}
    with pytest.raises(Conflict, match="nothing is left"):
        shop.client.rollback(run_id)


def test_of_twenty_that_ask_at_once_one_starts_a_rollback(shops: MakeShop) -> None:
    shop = shops(TAKE)
    run_id = shop.done()

    def ask(number: int) -> str:
        try:
            return shop.client.rollback(run_id, by=f"user-{number}").run_id
        except Conflict as conflict:
            assert "is being rolled back by run" in str(conflict)  # noqa: PT017 - which conflict
            return ""

    with ThreadPoolExecutor(20) as people:
        (rollback,) = filter(None, people.map(ask, range(20)))

    shop.go_on(RunId(rollback))
    assert shop.stock == 10


def test_the_database_lets_no_second_rollback_go_on_and_no_call_be_undone_twice(
    shops: MakeShop,
) -> None:
    shop = shops(TAKE)
    run_id = shop.done()
    shop.client.rollback(run_id)
    copied = "run_id, tenant_id, user_id, thread_id, root_run_id, parent_run_id, kind, agent,"
    with pytest.raises(DBAPIError) as refused:
        shop.rows(
            f"INSERT INTO celeriac.runs ({copied} status, phase, queue, limits)"
            f" SELECT 'second', tenant_id, user_id, thread_id, root_run_id, parent_run_id, kind,"
            " agent, status, phase, queue, limits FROM celeriac.runs WHERE kind = 'rollback'"
        )
    assert "runs_one_rollback" in str(refused.value)
    (row,) = shop.rows("SELECT run_id FROM celeriac.runs WHERE kind = 'rollback'")
    shop.go_on(row.run_id)
    with pytest.raises(DBAPIError) as refused:
        shop.rows(
            "INSERT INTO celeriac.effects (run_id, call_id, step, call_index, provider_call_id,"
            " tool, tool_version, kind, fingerprint, state, rolls_back_run, rolls_back,"
            " rolls_back_kind, rolls_back_stands) SELECT run_id, '0.9', step, 9, provider_call_id,"
            " tool, tool_version, kind, fingerprint, 'planned', rolls_back_run, rolls_back,"
            " rolls_back_kind, true FROM celeriac.effects WHERE rolls_back IS NOT NULL"
        )
    assert "effects_undone_once" in str(refused.value)


def test_nothing_but_the_commit_of_its_undo_makes_a_call_rolled_back(shops: MakeShop) -> None:
    shop = shops(TAKE)
    shop.done()

    with pytest.raises(DBAPIError) as refused:
        shop.rows("UPDATE celeriac.effects SET state = 'rolled_back' RETURNING call_id")

    assert sqlstate(refused.value) == "CE006"


# Refused ------------------------------------------------------------------------------------------


def refusal(shop: Shop, run_id: str, from_step: int = 0, **who: str) -> CeleriacError:
    """Why the rollback is refused; fails if anything of it is written."""
    before = len(shop.client.runs())
    with pytest.raises(CeleriacError) as refused:
        shop.client.rollback(run_id, from_step, **who)
    assert len(shop.client.runs()) == before
    return refused.value


def test_a_run_that_may_do_more_is_not_rolled_back(shops: MakeShop) -> None:
    shop = shops(TAKE, TAKE)
    run_id = shop.worker.start("shop")
    for _ in range(2):
        shop.worker.step(run_id)

    error = refusal(shop, run_id)

    assert isinstance(error, Conflict)
    assert f"celeriac interrupt {run_id}" in str(error)
    shop.client.interrupt(run_id)
    assert report(shop.roll_back(run_id))["undone"] == [{"call_id": "0.0", "tool": "take"}]
    shop.client.cancel(run_id)


def test_a_call_of_unknown_outcome_is_settled_before_a_rollback(shops: MakeShop) -> None:
    shop = shops(TAKE)
    run_id = shop.done()
    with shop.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("UPDATE celeriac.effects SET state = 'unknown', result = NULL")

    error = refusal(shop, run_id)

    assert isinstance(error, Conflict)
    assert f"celeriac resolve {run_id} 0.0 --committed JSON" in str(error)
    with shop.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql(
            "UPDATE celeriac.effects SET state = 'committed', result = '9',"
            " result_hash = sha256(convert_to('9', 'UTF8'))"
        )


def test_a_step_that_the_run_has_not_and_a_run_that_is_not_are_refused(shops: MakeShop) -> None:
    shop = shops(TAKE)
    run_id = shop.done()

    odd: list[Any] = [-1, 3, 99, 0.5, True, "0"]
    for step in odd:
        error = refusal(shop, run_id, step)
        assert isinstance(error, InvalidInput)
        assert "its steps are 0 to 2" in str(error)
    assert isinstance(refusal(shop, "nosuch"), UnknownRun)
    assert isinstance(refusal(shop, run_id, 1), Conflict)


def test_a_rollback_is_not_rolled_back_told_or_interrupted(shops: MakeShop) -> None:
    shop = shops(MAIL)
    undo = shop.roll_back(shop.done())

    for ask in (
        lambda: shop.client.rollback(undo.run_id),
        lambda: shop.client.say(undo.run_id, "stop"),
        lambda: shop.client.interrupt(undo.run_id),
    ):
        with pytest.raises(Conflict, match=r"is (a|of kind) rollback"):
            ask()


def test_who_may_not_decide_a_call_may_not_have_it_undone(shops: MakeShop) -> None:
    shop = shops(BOOK, TAKE, approval=Approval(roles=["stock"]))
    shop.client.set_principal("alice", roles=["stock"], by="root")
    run_id = shop.worker.start("shop")
    shop.go_on(run_id)
    (proposal,) = shop.client.approvals(by="alice")
    shop.client.approve(proposal.approval_id, by="alice")
    assert shop.go_on(run_id).status == "completed"

    error = refusal(shop, run_id, by="mallory")

    assert isinstance(error, NotAllowed)
    assert "call 2.0 (take) needed a decision: mallory has the roles none" in str(error)
    (denied,) = shop.rows("SELECT * FROM celeriac.audit WHERE action = 'run.rollback'")
    assert (denied.actor, denied.outcome, denied.run_id) == ("mallory", "denied", run_id)
    assert report(shop.roll_back(run_id, by="alice"))["not_undone"] == []


def test_what_the_run_did_after_the_request_is_not_undone(shops: MakeShop) -> None:
    shop = shops(BOOK, TAKE, approval=Approval(roles=["stock"]))
    shop.client.set_principal("alice", roles=["stock"], by="root")
    run_id = shop.worker.start("shop")
    shop.worker.step(run_id)
    shop.worker.step(run_id)
    shop.client.interrupt(run_id, by="alice")
    undo_id = shop.client.rollback(run_id, by="mallory").run_id  # who may not decide about `take`
    shop.client.say(run_id, "go on", by="alice")
    shop.go_on(run_id)
    (proposal,) = shop.client.approvals(by="alice")
    shop.client.approve(proposal.approval_id, by="alice")
    assert shop.go_on(run_id).status == "completed"

    shop.go_on(undo_id)

    assert report(shop.client.get(undo_id)) == {
        "undone": [],
        "compensated": [{"call_id": "0.0", "tool": "book"}],
        "not_undone": [],
    }
    assert (shop.stock, shop.states(run_id)["take"]) == (9, "committed")


def test_who_owns_the_run_may_have_it_undone_if_the_role_is_theirs(shops: MakeShop) -> None:
    shop = shops(TAKE, approval=Approval(roles=["stock"]))
    for user in ("alice", "local"):  # `local` owns the run
        shop.client.set_principal(user, roles=["stock"], by="root")
    run_id = shop.worker.start("shop")
    shop.go_on(run_id)
    (proposal,) = shop.client.approvals(by="alice")
    shop.client.approve(proposal.approval_id, by="alice")
    shop.go_on(run_id)

    assert report(shop.roll_back(run_id, by="local"))["not_undone"] == []


def test_a_run_that_a_person_must_look_at_can_be_rolled_back(shops: MakeShop) -> None:
    shop = shops(TAKE, SHIP)
    run_id = shop.worker.start("shop")
    for _ in range(3):
        shop.worker.step(run_id)
    shop.new_worker([tool for tool in shop.agent.tools if tool.name != "ship"])
    assert shop.go_on(run_id).status == "needs_attention"

    assert report(shop.roll_back(run_id))["undone"] == [{"call_id": "0.0", "tool": "take"}]


# The audit ----------------------------------------------------------------------------------------

UNDO = "run_id = (SELECT run_id FROM celeriac.runs WHERE kind = 'rollback')"
CALL = "run_id = (SELECT run_id FROM celeriac.runs WHERE kind = 'agent')"
EFFECTS = "UPDATE celeriac.effects SET"
GOING_ON = (
    "status = 'queued', phase = 'waiting_model', finished_at = NULL, result = NULL,"
    " outcome = NULL, kind = 'rollback', parent_run_id = 'r'"
)


# features: 004-60
@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (f"{EFFECTS} state = 'committed' WHERE {CALL}", rollbacks.UNDONE_ONCE),
        (
            f"{EFFECTS} state = 'failed', rolls_back_stands = NULL WHERE {UNDO}",
            rollbacks.UNDONE_ONCE,
        ),
        (f"{EFFECTS} state = 'failed' WHERE {UNDO}", rollbacks.UNDOS),
        (f"{EFFECTS} rolls_back = '7.7' WHERE {UNDO}", rollbacks.UNDOS),
        (f"{EFFECTS} arguments = '{{}}' WHERE {UNDO}", rollbacks.UNDOS),
        ("UPDATE celeriac.runs SET kind = 'agent' WHERE kind = 'rollback'", rollbacks.UNDOS),
        (
            "DROP INDEX celeriac.runs_one_rollback; UPDATE celeriac.runs SET " + GOING_ON,
            rollbacks.ONE_ROLLBACK,
        ),
    ],
)
def test_the_audit_sees_what_no_rollback_leaves(
    database: Database, broker_url: str, damage: str, check: Check
) -> None:
    shop = Shop(database, broker_url, Tools(), [TAKE])
    run_id = shop.done()
    shop.roll_back(run_id)
    shop.close()
    with database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        for statement in damage.split(";"):
            connection.exec_driver_sql(statement)

    found = [violation.detail for violation in audit(database)]

    assert [detail for detail in found if detail.startswith(check.name)], found
