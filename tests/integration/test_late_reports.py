"""A worker lost its claim during a call, and tells what came of it after others have judged."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Row

from celeriac import InBand, ToolContext, ToolError, tool
from celeriac.client import NotDone, TookEffect
from celeriac.errors import Conflict
from celeriac.ids import DEFAULT_TENANT, DEFAULT_USER, CallId, RunId, UserId
from celeriac.recovery import Retry
from celeriac.scripted import call
from celeriac.states import RunStatus
from celeriac.tools import Tool
from celeriac_storage import claims, erasing
from celeriac_storage.database import Database
from celeriac_storage.erasing import Scope
from tests.undo_shop import Shop, Tools
from tests.worker_in_process import Worker

CALL = CallId("0.0")


class Letters(Tools):
    """A tool and an undo of it, neither of which can be looked at; `during` happens in the next
    call of either, before it ends."""

    def __init__(self, retry: Retry | None = None) -> None:
        super().__init__(retry=retry)
        self.sent: list[str] = []  # the key of each call
        self.during: list[Callable[[], object]] = []
        self.refusals: list[ToolError] = []
        self.conditions: list[Callable[[], object]] = []  # of the next calls, if any

    def all(self) -> list[Tool[..., Any]]:
        def take_back(ctx: ToolContext) -> str:
            return self.call(ctx, "TAKEN BACK")

        def can_send(ctx: ToolContext) -> None:  # noqa: ARG001 - what a precondition takes
            if self.conditions:
                self.conditions.pop()()

        @tool(
            effect="external",
            rollback=InBand(take_back),
            retry=self.retry,
            precondition=can_send,
        )
        def send(ctx: ToolContext) -> str:
            """Send a letter."""
            return self.call(ctx, "SENT")

        return [send]

    def call(self, ctx: ToolContext, result: str) -> str:
        self.sent.append(ctx.idempotency_key)
        if self.during:
            self.during.pop()()
        if self.refusals:
            raise self.refusals.pop()
        return result


class LateShop(Shop):
    """Its first worker calls; `other` takes the step over meanwhile."""

    def __init__(self, database: Database, broker_url: str, retry: Retry | None = None) -> None:
        self.letters = Letters(retry)
        super().__init__(database, broker_url, self.letters, [call("send")])
        self.late = self.worker
        self.other = self.new_worker(self.agent.tools)

    def start(self) -> RunId:
        """A run whose next step is the call."""
        run_id = self.other.start("shop")
        self.other.step(run_id)
        return run_id

    def roll_back_next(self) -> RunId:
        """A rollback whose next step is the undo."""
        run_id = self.client.rollback(self.done(), by="alice").run_id
        self.other.step(run_id)
        return run_id

    def call_late(self, run_id: RunId, meanwhile: Callable[[], object]) -> None:
        """The late worker loses its claim in the call, the other one finds the call `unknown`, and
        then something happens before the call ends and is reported."""

        def lose() -> None:
            take_away(self, self.late)
            self.other.step(run_id)
            assert self.effect(run_id).state == "unknown"
            meanwhile()

        self.letters.during.append(lose)
        self.late.step(run_id)

    def effect(self, run_id: RunId) -> Row[Any]:
        (row,) = self.rows("SELECT * FROM celeriac.effects WHERE run_id = %s", run_id)
        return row

    def entries(self, run_id: RunId) -> list[tuple[int, str]]:
        """Attempt and outcome of each entry about the call."""
        rows = self.rows(
            "SELECT attempt, outcome FROM celeriac.effect_attempts WHERE run_id = %s"
            " ORDER BY attempt, entry",
            run_id,
        )
        return [(row.attempt, row.outcome) for row in rows]

    def not_done(self, run_id: RunId) -> RunStatus:
        return self.client.resolve(run_id, CALL, NotDone(), by="bob")


def take_away(shop: Shop, worker: Worker) -> None:
    (claim,) = worker.process._held.values()
    with shop.database.connect() as connection:
        claims.release(connection, claim)


@pytest.fixture
def shop(database: Database, broker_url: str) -> Iterator[LateShop]:
    with ExitStack() as stack:
        made = LateShop(database, broker_url)
        stack.callback(made.close)
        yield made


# features: 004-20
def test_a_call_found_not_done_whose_own_worker_says_that_it_was_is_not_made_again(
    shop: LateShop,
) -> None:
    run_id = shop.start()
    shop.call_late(run_id, meanwhile=lambda: shop.not_done(run_id))
    assert shop.effect(run_id).state == "not_done"
    assert shop.violations() == []

    assert shop.go_on(run_id).status == "completed"

    assert len(shop.letters.sent) == 1
    effect = shop.effect(run_id)
    assert (effect.state, effect.attempt, effect.result) == ("committed", 1, "SENT")
    assert shop.violations() == []


def test_an_undo_found_not_done_whose_own_worker_says_that_it_was_is_not_made_again(
    shop: LateShop,
) -> None:
    run_id = shop.roll_back_next()
    shop.call_late(run_id, meanwhile=lambda: shop.not_done(run_id))

    assert shop.go_on(run_id).status == "completed"

    assert len(shop.letters.sent) == 2  # the call and its undo
    assert [effect.tool for effect in shop.client.get(run_id).effects] == ["send.undo"]
    assert shop.effect(run_id).state == "committed"
    assert shop.violations() == []


def test_nobody_declares_a_call_not_done_over_its_own_workers_word(shop: LateShop) -> None:
    run_id = shop.start()
    shop.call_late(run_id, meanwhile=lambda: shop.client.cancel(run_id, by="bob"))
    assert shop.effect(run_id).state == "unknown"

    with pytest.raises(Conflict, match='told that it took effect, with the result "SENT"'):
        shop.not_done(run_id)

    shop.client.resolve(run_id, CALL, TookEffect("SENT"), by="bob")
    assert shop.effect(run_id).state == "committed"
    assert shop.violations() == []


def test_the_audit_bears_a_worker_that_says_that_its_call_failed_after_others_have(
    shop: LateShop,
) -> None:
    run_id = shop.start()
    shop.letters.refusals.append(ToolError("no such address"))
    shop.call_late(run_id, meanwhile=lambda: shop.not_done(run_id))
    assert shop.entries(run_id)[-1] == (1, "failed")
    assert shop.effect(run_id).state == "not_done"
    assert shop.violations() == []

    assert shop.go_on(run_id).status == "completed"

    assert (shop.effect(run_id).state, len(shop.letters.sent)) == ("committed", 2)
    assert shop.violations() == []


def test_the_audit_bears_a_worker_that_tells_after_the_call_was_made_again(shop: LateShop) -> None:
    run_id = shop.start()

    def make_again() -> None:
        shop.not_done(run_id)
        shop.go_on(run_id)

    shop.call_late(run_id, meanwhile=make_again)

    assert shop.entries(run_id) == [
        *((1, outcome) for outcome in ("started", "unknown", "not_done", "committed")),
        *((2, outcome) for outcome in ("started", "committed")),
    ]
    assert shop.violations() == []


def test_an_undo_that_certainly_failed_is_told_by_the_worker_that_made_it(shop: LateShop) -> None:
    run_id = shop.roll_back_next()
    shop.letters.refusals.append(ToolError("it was opened already"))
    shop.call_late(run_id, meanwhile=lambda: None)
    assert shop.entries(run_id)[-1] == (1, "failed")

    row = shop.go_on(run_id)  # nobody had to say anything

    assert (row.status, row.error["kind"]) == ("needs_attention", "undo_failed")
    assert "it was opened already" in row.error["message"]
    assert (shop.effect(run_id).state, len(shop.letters.sent)) == ("not_done", 2)
    assert shop.violations() == []


@pytest.fixture
def patient_shop(database: Database, broker_url: str) -> Iterator[LateShop]:
    """Its tool is tried again after a definite failure."""
    with ExitStack() as stack:
        made = LateShop(database, broker_url, Retry(attempts=2, first_seconds=0.01))
        stack.callback(made.close)
        yield made


def test_a_definite_failure_that_is_told_late_is_tried_again_as_the_tool_says(
    patient_shop: LateShop,
) -> None:
    shop = patient_shop
    run_id = shop.start()
    shop.letters.refusals.append(ToolError("the mailbox is full"))
    shop.call_late(run_id, meanwhile=lambda: None)
    assert shop.entries(run_id)[-1] == (1, "failed")

    row = shop.go_on(run_id)
    assert (row.status, row.phase) == ("paused", "waiting_timer")
    assert shop.effect(run_id).state == "not_done"
    assert shop.violations() == []
    shop.wake()

    assert shop.go_on(run_id).status == "completed"
    assert (shop.effect(run_id).state, len(shop.letters.sent)) == ("committed", 2)
    assert len(set(shop.letters.sent)) == 1
    assert shop.violations() == []


def test_the_last_attempt_that_is_told_late_is_the_last(patient_shop: LateShop) -> None:
    shop = patient_shop
    run_id = shop.start()
    shop.letters.refusals.append(ToolError("the mailbox is full"))
    shop.late.step(run_id)
    shop.wake()
    shop.letters.refusals.append(ToolError("the mailbox is full"))
    shop.call_late(run_id, meanwhile=lambda: None)

    assert shop.go_on(run_id).status == "completed"

    assert (shop.effect(run_id).state, len(shop.letters.sent)) == ("failed", 2)
    assert shop.violations() == []


# Calls that are not made any more -----------------------------------------------------------------


def test_a_call_that_its_user_withdraws_is_committed_if_its_own_worker_has_told_so(
    shop: LateShop,
) -> None:
    run_id = shop.start()

    def withdraw() -> None:
        shop.not_done(run_id)
        shop.client.interrupt(run_id, by="bob")
        shop.client.say(run_id, "leave it", by="bob")

    shop.call_late(run_id, meanwhile=withdraw)

    assert shop.go_on(run_id).status == "completed"

    effect = shop.effect(run_id)
    assert (effect.state, effect.result, len(shop.letters.sent)) == ("committed", "SENT", 1)
    assert shop.violations() == []


def refuse() -> None:
    raise ToolError("the post office is closed")


def test_a_call_whose_condition_failed_is_committed_if_its_own_worker_tells_so_later(
    shop: LateShop,
) -> None:
    run_id = shop.start()

    def stop() -> None:
        shop.not_done(run_id)
        shop.letters.conditions.append(refuse)
        shop.other.step(run_id)
        assert shop.effect(run_id).state == "precondition_failed"
        assert shop.other.row(run_id).status == "needs_attention"

    shop.call_late(run_id, meanwhile=stop)

    row = shop.go_on(run_id)  # nobody had to say anything

    assert row.status == "completed"
    effect = shop.effect(run_id)
    assert (effect.state, effect.error, effect.result) == ("committed", None, "SENT")
    assert len(shop.letters.sent) == 1
    assert shop.violations() == []


def test_a_report_that_comes_in_while_the_condition_is_asked_counts(shop: LateShop) -> None:
    """The condition does not hold: perhaps because the call was made already."""
    run_id = shop.start()

    asked, told = Event(), Event()
    steps: list[Future[None]] = []

    def is_closed() -> None:
        asked.set()
        assert told.wait(60)
        refuse()

    def ask_meanwhile() -> None:
        shop.not_done(run_id)
        shop.letters.conditions.append(is_closed)
        steps.append(slot.submit(shop.other.step, run_id))
        assert asked.wait(60)

    with ThreadPoolExecutor(1) as slot:
        shop.call_late(run_id, meanwhile=ask_meanwhile)
        told.set()
        steps[0].result(60)

    assert shop.go_on(run_id).status == "completed"
    assert (shop.effect(run_id).state, len(shop.letters.sent)) == ("committed", 1)
    assert shop.violations() == []


def test_what_the_model_was_told_stays_and_the_late_word_is_kept(shop: LateShop) -> None:
    """A conversation is never rewritten; the attempt says what its own worker knows."""
    run_id = shop.start()

    def tell_the_model() -> None:
        shop.not_done(run_id)
        shop.letters.conditions.append(refuse)
        shop.other.step(run_id)
        shop.client.retry(run_id, by="bob")
        assert shop.go_on(run_id).status == "completed"

    shop.call_late(run_id, meanwhile=tell_the_model)

    assert shop.entries(run_id)[-1] == (1, "committed")
    assert shop.effect(run_id).state == "precondition_failed"
    assert shop.violations() == []


def test_a_withdrawn_call_whose_own_worker_tells_later_keeps_both_facts(shop: LateShop) -> None:
    run_id = shop.start()

    def withdraw() -> None:
        shop.not_done(run_id)
        shop.client.interrupt(run_id, by="bob")
        shop.client.say(run_id, "leave it", by="bob")
        assert shop.go_on(run_id).status == "completed"

    shop.call_late(run_id, meanwhile=withdraw)

    assert shop.entries(run_id)[-2:] == [(1, "failed"), (1, "committed")]
    assert shop.violations() == []


def test_of_an_erased_run_a_late_report_brings_nothing_back(shop: LateShop) -> None:
    run_id = shop.start()

    def forget() -> None:
        shop.not_done(run_id)
        shop.client.cancel(run_id, by="bob")
        erasing.erase(shop.database, Scope(DEFAULT_TENANT, user_id=DEFAULT_USER), UserId("root"))

    shop.call_late(run_id, meanwhile=forget)

    *_, told = shop.rows("SELECT outcome, evidence FROM celeriac.effect_attempts ORDER BY entry")
    assert tuple(told) == ("committed", None)
    with pytest.raises(Conflict, match="was erased"):
        shop.client.resolve(run_id, CALL, TookEffect("SENT"), by="bob")
    assert shop.effect(run_id).result is None
    assert shop.violations() == []


# Runs that are over -------------------------------------------------------------------------------


def test_a_call_of_a_cancelled_run_that_was_found_not_done_can_still_be_settled(
    shop: LateShop,
) -> None:
    run_id = shop.start()

    def cancel() -> None:
        shop.not_done(run_id)
        assert shop.client.cancel(run_id, by="bob") is RunStatus.CANCELLED

    shop.call_late(run_id, meanwhile=cancel)
    assert shop.effect(run_id).state == "not_done"
    with pytest.raises(Conflict, match=r"before it is known what came of call 0\.0"):
        shop.client.rollback(run_id, by="bob")

    assert shop.client.resolve(run_id, CALL, TookEffect("SENT"), by="bob") is RunStatus.CANCELLED

    assert shop.effect(run_id).state == "committed"
    assert shop.violations() == []
    shop.go_on(shop.client.rollback(run_id, by="bob").run_id)
    assert len(shop.letters.sent) == 2  # the call and its undo
    assert shop.violations() == []
