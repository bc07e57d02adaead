"""What must hold right before a call: read again each time, and never taken for granted."""

# features: 004-25
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from celeriac import Approval, ToolContext, ToolError, tool
from celeriac.errors import DecisionRefused
from celeriac.ids import RunId
from celeriac.recovery import Done, NotDone, Retry
from celeriac.states import RunStatus
from celeriac.tools import EffectName, Tool
from celeriac_storage import waking
from celeriac_storage.database import Database
from celeriac_tasks.step import take_step
from tests.review_desk import Desk, Ledger
from tests.worker_in_process import FIRST_CALL

SPEND = {"account": "A-1", "cents": 300}
EFFECTS: list[EffectName] = ["transactional", "external"]
AnyTool = Tool[..., Any]
MakeDesk = Callable[..., Desk]


@pytest.fixture
def bank(database: Database) -> Database:
    with database.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE accounts (account text, cents int NOT NULL)")
        connection.exec_driver_sql("INSERT INTO accounts VALUES ('A-1', 1200)")
    return database


def balance(bank: Database) -> int:
    with bank.connect() as connection:
        return int(connection.exec_driver_sql("SELECT cents FROM accounts").scalar_one())


def set_balance(bank: Database, cents: int) -> None:
    with bank.begin() as connection:
        connection.exec_driver_sql("UPDATE accounts SET cents = %s", (cents,))


def set_balance_elsewhere(bank: Database, cents: int) -> None:
    """By a process that has nothing to do with any worker."""
    code = (
        "import psycopg, sys\n"
        "with psycopg.connect(sys.argv[1]) as connection:\n"
        "    connection.execute('UPDATE accounts SET cents = %s', (int(sys.argv[2]),))\n"
    )
    subprocess.run([sys.executable, "-c", code, bank.url, str(cents)], check=True, timeout=60)


class Spending:
    """A tool that takes money from an account and never looks whether it is there; and what may be
    wrong with the check before it."""

    def __init__(self, bank: Database, effect: EffectName, **declared: Any) -> None:
        self.bank = bank
        self.effect = effect
        self.ledger = Ledger()
        self.asked: list[int] = []  # the attempt that each check was for
        self.trouble: list[Exception] = []  # of the next checks
        self.declared = {"precondition": self.covered, **declared}

    def covered(self, ctx: ToolContext, account: str, cents: int) -> None:
        self.asked.append(ctx.attempt)
        if self.trouble:
            raise self.trouble.pop(0)
        query = text("SELECT cents FROM accounts WHERE account = :account FOR UPDATE")
        if self.effect == "transactional":
            there = ctx.connection.execute(query, {"account": account}).scalar_one()
        else:
            with self.bank.begin() as connection:
                there = connection.execute(query, {"account": account}).scalar_one()
        if there < cents:
            raise ToolError(f"{account} holds {there} cents, not {cents}")

    def tool(self) -> AnyTool:
        def spend(ctx: ToolContext, account: str, cents: int) -> str:
            """Take money from an account."""
            update = text("UPDATE accounts SET cents = cents - :cents WHERE account = :account")
            values = {"account": account, "cents": cents}
            if self.effect == "transactional":
                ctx.connection.execute(update, values)
            else:
                with self.bank.begin() as connection:
                    connection.execute(update, values)
            self.ledger.entries.append(("spend", values, ctx.idempotency_key))
            return "SPENT"

        return tool(effect=self.effect, **self.declared)(spend)


@pytest.fixture
def desks(bank: Database, broker_url: str) -> Iterator[MakeDesk]:
    with ExitStack() as stack:

        def make(
            spending: Spending,
            calls: Any = (("spend", SPEND),),
            more_tools: Sequence[AnyTool] = (),
        ) -> Desk:
            tools = [spending.tool(), *more_tools]
            desk = Desk(bank, broker_url, spending.ledger, tools, calls)
            stack.callback(desk.close)
            return desk

        yield make


def wake(desk: Desk) -> None:
    """The timers' time has come."""
    with desk.database.connect() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET wake_at = now() WHERE phase = 'waiting_timer'"
        )
        waking.take_due_timers(connection)


def started(desk: Desk) -> RunId:
    run_id = desk.worker.start("desk")
    desk.worker.step(run_id)
    return run_id


def attempts(desk: Desk) -> list[str]:
    rows = desk.rows("SELECT outcome FROM celeriac.effect_attempts ORDER BY attempt, entry")
    return [row.outcome for row in rows]


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_call_whose_condition_holds_is_made_once(
    bank: Database, desks: MakeDesk, effect: EffectName
) -> None:
    spending = Spending(bank, effect)
    desk = desks(spending)

    row = desk.go_on(started(desk))

    assert (row.status, balance(bank), spending.asked) == ("completed", 900, [1])
    assert desk.violations() == []


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_was_approved_is_not_done_if_the_world_has_changed_since(
    bank: Database, desks: MakeDesk, effect: EffectName
) -> None:
    spending = Spending(bank, effect, approval=Approval())
    desk = desks(spending, [("spend", {"account": "A-1", "cents": 1000})])
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")

    set_balance_elsewhere(bank, 500)
    row = desk.go_on(run_id)

    assert (desk.ledger.entries, balance(bank), attempts(desk)) == ([], 500, [])
    effect_row = desk.effect(run_id)
    assert (effect_row.state, effect_row.attempt) == ("precondition_failed", 0)
    assert row.status == RunStatus.NEEDS_ATTENTION, "nobody is told by a silent failure"
    assert row.error["kind"] == "precondition_failed"
    assert "A-1 holds 500 cents, not 1000" in row.error["message"]
    for command in (f"celeriac retry {run_id}", f"celeriac cancel {run_id}"):
        assert command in row.error["message"]
    assert desk.events(run_id)[-2:] == ["effect.precondition_failed", "run.needs_attention"]
    (approval,) = desk.rows("SELECT * FROM celeriac.approvals")
    assert (approval.status, approval.consumed_at) == ("revoked", None)
    assert "A-1 holds 500 cents" in approval.revoked_because
    assert desk.violations() == []


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_retry_tells_the_model_that_it_was_not_done_and_a_cancel_ends_it(
    bank: Database, desks: MakeDesk, effect: EffectName
) -> None:
    set_balance(bank, 0)
    desk = desks(Spending(bank, effect))
    run_id = started(desk)
    desk.go_on(run_id)
    set_balance(bank, 1200)

    desk.client.retry(run_id, by="alice")
    row = desk.go_on(run_id)

    assert (row.status, balance(bank)) == ("completed", 1200)
    assert "not executed, its precondition does not hold: A-1 holds 0 cents" in desk.shown
    set_balance(bank, 0)
    desk.asked.clear()
    other = started(desk)
    desk.go_on(other)
    assert desk.client.cancel(other, by="alice") == RunStatus.CANCELLED
    assert desk.violations() == []


def test_spends_at_once_never_take_more_than_is_there(bank: Database, desks: MakeDesk) -> None:
    spending = Spending(bank, "transactional")
    desk = desks(spending)
    runs = []
    for _ in range(12):
        desk.asked.clear()
        runs.append(started(desk))
    workers = [desk.worker, desk.new_worker(), desk.new_worker()]

    with ThreadPoolExecutor(12) as slots:
        for number, run_id in enumerate(runs):
            slots.submit(take_step, workers[number % 3].process, run_id, 1)
    for worker in workers[:2]:
        worker.process.stop()

    assert balance(bank) == 0
    states = sorted(desk.effect(run_id).state for run_id in runs)
    assert states == ["committed"] * 4 + ["precondition_failed"] * 8
    assert desk.violations() == []


def test_without_the_check_the_same_spends_take_what_is_not_there(
    bank: Database, desks: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tests show something: here the mechanism is taken out."""
    monkeypatch.setattr("celeriac_tasks.transacting.obstacle", lambda *_: None)
    set_balance(bank, 100)
    desk = desks(Spending(bank, "transactional"))

    desk.go_on(started(desk))

    assert balance(bank) < 0


def test_a_call_that_is_sent_again_is_checked_again(bank: Database, desks: MakeDesk) -> None:
    found: list[Done | NotDone] = [NotDone()]
    spending = Spending(bank, "external", verify=lambda ctx: found[0])  # noqa: ARG005 - its shape
    desk = desks(spending)
    run_id = started(desk)
    desk.damage("ALTER TABLE accounts ADD CHECK (cents > 1000)")  # the tool's outcome is unknown
    desk.go_on(run_id)
    assert desk.effect(run_id).state == "unknown"
    desk.damage("UPDATE accounts SET cents = 1100")
    wake(desk)
    desk.worker.step(run_id)
    assert desk.effect(run_id).state == "not_done"
    desk.damage("ALTER TABLE accounts DROP CONSTRAINT accounts_cents_check")
    set_balance(bank, 100)

    row = desk.go_on(run_id)

    assert (row.status, row.error["kind"]) == ("needs_attention", "precondition_failed")
    effect = desk.effect(run_id)
    assert (effect.state, effect.attempt, spending.asked) == ("precondition_failed", 1, [1, 2])
    assert attempts(desk) == ["started", "unknown", "not_done"]
    assert desk.ledger.entries == []
    assert desk.violations() == []


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_cannot_be_read_is_never_taken_to_hold(
    bank: Database, desks: MakeDesk, effect: EffectName
) -> None:
    spending = Spending(bank, effect)
    spending.trouble = [ConnectionError("the bank is closed")]
    desk = desks(spending)
    run_id = started(desk)

    row = desk.go_on(run_id)

    assert (row.status, row.error["kind"]) == ("needs_attention", "precondition_unclear")
    assert "the bank is closed" in row.error["message"]
    found = desk.effect(run_id)
    assert (found.state, found.attempt, found.checks) == ("planned", 0, 1)
    assert balance(bank) == 1200
    assert desk.violations() == []
    desk.client.retry(run_id)
    assert desk.go_on(run_id).status == "completed"
    assert (balance(bank), desk.effect(run_id).attempt) == (900, 1)
    assert desk.violations() == []


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_cannot_be_read_is_read_again_as_often_as_the_tool_says(
    bank: Database, desks: MakeDesk, effect: EffectName
) -> None:
    retry = Retry(attempts=3, on=(ConnectionError,))
    spending = Spending(bank, effect, retry=retry, approval=Approval())
    spending.trouble = [ConnectionError("closed") for _ in range(3)]
    desk = desks(spending)
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")

    for checks in (1, 2):
        row = desk.go_on(run_id)
        assert (row.status, row.phase) == ("paused", "waiting_timer")
        assert (desk.effect(run_id).state, desk.effect(run_id).checks) == ("approved", checks)
        assert desk.violations() == []
        wake(desk)
    row = desk.go_on(run_id)

    assert (row.status, row.error["kind"]) == ("needs_attention", "precondition_unclear")
    assert desk.events(run_id).count("precondition.unclear") == 3
    assert balance(bank) == 1200
    desk.client.retry(run_id)
    assert desk.go_on(run_id).status == "completed"
    assert balance(bank) == 900
    assert desk.violations() == []


def answers(ctx: ToolContext) -> bool:  # noqa: ARG001 - what a precondition takes
    return True


def breaks_a_statement(ctx: ToolContext) -> None:
    ctx.connection.execute(text("SELECT nothing FROM nowhere"))


def ends_the_transaction(ctx: ToolContext) -> None:
    ctx.connection.execute(text("UPDATE accounts SET cents = 0"))
    ctx.connection.commit()


def exits(ctx: ToolContext) -> None:  # noqa: ARG001 - what a precondition takes
    sys.exit(3)


@pytest.mark.parametrize("precondition", [answers, breaks_a_statement, ends_the_transaction, exits])
def test_whatever_else_a_precondition_does_is_no_yes(
    bank: Database, desks: MakeDesk, precondition: Callable[..., Any]
) -> None:
    spending = Spending(bank, "transactional", precondition=precondition)
    desk = desks(spending)
    run_id = started(desk)

    row = desk.go_on(run_id)
    assert (row.status, row.error["kind"]) == ("needs_attention", "precondition_unclear")
    assert balance(bank) == 1200
    assert desk.effect(run_id).state == "planned"
    desk.worker.assert_connections_are_clean()
    assert desk.violations() == []


@pytest.mark.parametrize("effect", EFFECTS)
def test_what_a_precondition_does_to_its_arguments_reaches_no_call(
    bank: Database, desks: MakeDesk, effect: EffectName
) -> None:
    """A person approved these arguments, and no others are executed."""
    paid: list[object] = []

    def meddle(ctx: ToolContext, bill: dict[str, Any]) -> None:  # noqa: ARG001 - its shape
        bill["items"][0]["cents"] = 1_000_000
        bill["to"] = "M-1"

    @tool(effect=effect, precondition=meddle, approval=Approval())
    def pay(ctx: ToolContext, bill: dict[str, Any]) -> str:  # noqa: ARG001 - its shape
        """Pay a bill."""
        paid.append(bill)
        return "PAID"

    bill = {"to": "A-1", "items": [{"cents": 300}]}
    spending = Spending(bank, effect)
    desk = desks(spending, [("pay", {"bill": bill})], [pay])
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")

    assert desk.go_on(run_id).status == "completed"

    assert paid == [{"to": "A-1", "items": [{"cents": 300}]}]
    assert desk.violations() == []


@pytest.mark.parametrize("error", [ToolError("no"), ConnectionError("closed")])
def test_what_a_precondition_writes_before_it_says_no_is_undone(
    bank: Database, desks: MakeDesk, error: Exception
) -> None:
    def spends(ctx: ToolContext) -> None:
        ctx.connection.execute(text("UPDATE accounts SET cents = 0"))
        raise error

    desk = desks(Spending(bank, "transactional", precondition=spends))

    assert desk.go_on(started(desk)).status == "needs_attention"

    assert balance(bank) == 1200
    assert desk.violations() == []


def test_a_precondition_that_hangs_is_given_up_at_the_tools_timeout(
    bank: Database, desks: MakeDesk
) -> None:
    spending = Spending(bank, "external", timeout_seconds=0.2)
    desk = desks(spending)
    run_id = started(desk)

    with bank.begin() as somebody:
        somebody.exec_driver_sql("SELECT FROM accounts FOR UPDATE")
        row = desk.go_on(run_id)

    assert (row.status, row.error["kind"]) == ("needs_attention", "precondition_unclear")
    assert balance(bank) == 1200


def test_a_lost_race_in_the_check_is_run_again(bank: Database, desks: MakeDesk) -> None:
    class Lost(Exception):
        sqlstate = "40P01"

    spending = Spending(bank, "transactional")
    spending.trouble = [OperationalError("SELECT", {}, Lost("deadlock"))]
    desk = desks(spending)

    row = desk.go_on(started(desk))

    assert (row.status, balance(bank), len(spending.asked)) == ("completed", 900, 2)


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_decision_that_was_taken_back_comes_before_the_condition(
    bank: Database, desks: MakeDesk, effect: EffectName
) -> None:
    spending = Spending(bank, effect, approval=Approval(roles=["payers"]))
    desk = desks(spending)
    desk.client.set_principal("alice", roles=["payers"], by="root")
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")
    desk.client.set_principal("alice", roles=[], by="root")
    set_balance(bank, 0)

    row = desk.go_on(run_id)

    assert (row.status, row.phase) == ("paused", "waiting_approval")
    assert spending.asked == []
    with pytest.raises(DecisionRefused):
        desk.client.approve(proposal.approval_id, by="alice")
    assert desk.violations() == []


def test_a_cancel_during_the_check_ends_the_run(bank: Database, desks: MakeDesk) -> None:
    spending = Spending(bank, "external")
    desk = desks(spending)
    run_id = started(desk)

    def refuse(ctx: ToolContext) -> None:
        desk.client.cancel(ctx.run_id, by="alice")
        raise ToolError("no")

    spending.declared["precondition"] = refuse
    object.__setattr__(desk.worker.process.agents["desk"].tools["spend"], "precondition", refuse)
    row = desk.go_on(run_id)

    assert row.status == "cancelled"
    assert desk.effect(run_id, FIRST_CALL).state == "precondition_failed"
    assert desk.violations() == []
