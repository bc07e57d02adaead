"""Budgets: reserved before a step, settled in its commit, and where a run goes at the limit."""

# features: 004-06
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac import Agent, Price, tool
from celeriac.budget import Allowance, Measure, Scope
from celeriac.client import Client
from celeriac.errors import Conflict, InvalidInput, UnknownBudget, UnknownRun, UnknownThread
from celeriac.ids import DEFAULT_TENANT, RunId, UserId
from celeriac.reports import Budget
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac.states import RunStatus
from celeriac_storage import budget_limits, budgets, claims
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from celeriac_tasks.allotment import OUTPUT_TOKENS
from tests.steps_by_hand import ALICE, Hand
from tests.worker_in_process import Worker

BOB = UserId("bob")


@tool(effect="none")
def look() -> str:
    """Look."""
    return "seen"


TURN = Turn(text="done", input_tokens=100, output_tokens=20)
TALKER = Agent("talker", ScriptedModel([TURN]))
LOOKER = Agent(
    "looker", ScriptedModel([call("look"), say("done")]), tools=[look], max_output_tokens=50
)
DEAR = Agent("dear", ScriptedModel([TURN]), price=Price(Decimal(10), Decimal(100)))
FAILING = Agent("failing", ScriptedModel([Turn(error=TimeoutError("no answer"))]))


@pytest.fixture
def worker(database_url: str, broker_url: str) -> Iterator[Worker]:
    worker = Worker(database_url, broker_url, [TALKER, LOOKER, DEAR, FAILING])
    worker.process.start()
    yield worker
    worker.process.stop()


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        yield client


def allow(
    database: Database,
    hard: object = None,
    *,
    measure: Measure = Measure.TOKENS,
    scope: Scope = "user",
    subject: str = ALICE,
    soft: object = None,
    on_exceeded: Any = "pause",
) -> Budget:
    allowance = Allowance(
        None if hard is None else Decimal(str(hard)),
        None if soft is None else Decimal(str(soft)),
        on_exceeded,
    )
    with database.begin() as connection:
        return budget_limits.set_budget(
            connection, DEFAULT_TENANT, scope, subject, measure, allowance, BOB
        )


def top_up(database: Database, amount: object, key: str | None = None) -> Budget:
    with database.begin() as connection:
        return budget_limits.top_up(
            connection,
            DEFAULT_TENANT,
            "user",
            ALICE,
            Measure.TOKENS,
            Decimal(str(amount)),
            BOB,
            key,
        )


def seen(database: Database, measure: Measure = Measure.TOKENS) -> Budget:
    with database.connect() as connection:
        (found,) = [
            each
            for each in budget_limits.list_budgets(connection, DEFAULT_TENANT)
            if each.measure == measure
        ]
    return found


def amounts(budget: Budget) -> tuple[int, int, int]:
    """Used, reserved and in doubt."""
    return int(budget.used), int(budget.reserved), int(budget.in_doubt)


def take(worker: Worker, client: Client, agent: str, **start: Any) -> RunId:
    """Start a run of Alice's and take it as far as it goes."""
    run_id = client.start(agent, "go", user_id=ALICE, **start).run_id
    return take_on(worker, run_id)


def take_on(worker: Worker, run_id: RunId) -> RunId:
    while worker.row(run_id).status == RunStatus.QUEUED:
        worker.step(run_id)
    return run_id


def wake(database: Database) -> list[str]:
    with database.connect() as connection:
        return [due.run_id for due in budgets.wake_for_room(connection)]


def entries(database: Database, run_id: RunId) -> list[tuple[Any, ...]]:
    """Step, reserved and used of the run's entries, oldest first."""
    with database.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT step, reserved, used FROM celeriac.budget_entries WHERE run_id = %s"
            " ORDER BY reserved_seq",
            (run_id,),
        )
        return [tuple(row) for row in rows]


def event_data(client: Client, run_id: RunId, type_: str) -> list[Any]:
    return [event.data for event in client.events(run_id) if event.type == type_]


def test_a_call_is_reserved_and_then_charged_as_billed(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 10_000)

    run_id = take(worker, client, "talker")

    budget = seen(database)
    assert amounts(budget) == (120, 0, 0)
    ((step, reserved, used),) = entries(database, run_id)
    assert (step, used) == (0, 120)
    assert reserved > OUTPUT_TOKENS  # the answer, and the question as estimated
    assert audit(database) == []


def test_nothing_is_counted_without_a_budget(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 10_000, subject=BOB)

    run_id = take(worker, client, "talker")

    assert worker.row(run_id).status == "completed"
    assert entries(database, run_id) == []


def test_a_run_uses_the_budgets_of_its_tenant_user_and_thread_and_its_own(
    database: Database, worker: Worker, client: Client
) -> None:
    started = client.start("talker", "go", user_id=ALICE)
    allow(database, scope="tenant", subject=DEFAULT_TENANT)
    allow(database)
    allow(database, scope="thread", subject=started.thread_id)
    allow(database, scope="run", subject=started.run_id)

    take_on(worker, started.run_id)
    take(worker, client, "talker")

    with database.connect() as connection:
        found = budget_limits.list_budgets(connection, DEFAULT_TENANT)
    assert {each.scope: each.used for each in found} == {
        "tenant": 240,
        "user": 240,
        "thread": 120,
        "run": 120,
    }
    assert audit(database) == []


def test_steps_calls_and_seconds_are_counted(
    database: Database, worker: Worker, client: Client
) -> None:
    for measure in Measure:
        allow(database, 1_000_000, measure=measure)

    take(worker, client, "looker")

    assert seen(database, Measure.STEPS).used == 3
    assert seen(database, Measure.TOOL_CALLS).used == 1
    assert seen(database, Measure.SECONDS).used > 0
    assert [seen(database, measure).reserved for measure in Measure] == [0] * 5
    assert audit(database) == []


def test_money_is_charged_at_the_agents_own_price_and_recorded_with_the_call(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 1, measure=Measure.USD)

    run_id = take(worker, client, "dear")

    cost = Decimal("0.003")  # 100 tokens at $10 a million, and 20 at $100
    assert seen(database, Measure.USD).used == cost
    with database.connect() as connection:
        recorded = connection.exec_driver_sql(
            "SELECT cost FROM celeriac.model_calls WHERE run_id = %s", (run_id,)
        ).scalar_one()
    assert recorded == cost


def test_money_of_an_unknown_price_is_charged_as_of_a_dear_model(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 1, measure=Measure.USD)

    run_id = take(worker, client, "talker")

    assert seen(database, Measure.USD).used == Decimal("0.006")  # 100 at $30, and 20 at $150
    with database.connect() as connection:
        recorded = connection.exec_driver_sql(
            "SELECT cost FROM celeriac.model_calls WHERE run_id = %s", (run_id,)
        ).scalar_one()
    assert recorded is None, "a cost that nobody knows is not recorded as one"


def test_at_the_hard_limit_a_run_waits_for_a_top_up_and_holds_no_worker(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 1000)

    run_id = take(worker, client, "talker")

    row = worker.row(run_id)
    assert (row.status, row.phase, row.claim_token) == ("paused", "waiting_budget", None)
    assert amounts(seen(database)) == (0, 0, 0)
    assert seen(database).waiting_runs == 1
    (told,) = event_data(client, run_id, "budget.exceeded")
    assert (told["scope"], told["subject"], told["hard_limit"]) == ("user", ALICE, "1000")
    assert wake(database) == []

    top_up(database, 4000)
    assert wake(database) == [run_id]
    take_on(worker, run_id)

    assert worker.row(run_id).status == "completed"
    assert seen(database).used == 120
    assert audit(database) == []


def test_at_the_hard_limit_a_run_ends_if_its_budget_says_so(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 1000, on_exceeded="fail")

    run_id = take(worker, client, "talker")

    row = worker.row(run_id)
    assert (row.status, row.outcome) == ("failed", "limit_exceeded")
    assert "budget of tokens of user alice" in row.error["message"]
    assert entries(database, run_id) == []


def test_a_run_tells_its_user_nothing_of_what_others_of_the_tenant_used(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 1000, scope="tenant", subject=DEFAULT_TENANT, on_exceeded="fail")

    run_id = take(worker, client, "talker")

    (told,) = event_data(client, run_id, "budget.exceeded")
    assert set(told) == {"scope", "subject", "measure", "needed"}
    assert "1000" not in worker.row(run_id).error["message"]


def test_the_model_is_not_asked_if_one_of_several_budgets_refuses(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 1_000_000)
    allow(database, 0, measure=Measure.STEPS)

    run_id = take(worker, client, "talker")

    assert worker.row(run_id).status == "paused"
    assert entries(database, run_id) == [], "reserved of the budget that would have allowed it"


def test_a_soft_limit_warns_once(database: Database, worker: Worker, client: Client) -> None:
    allow(database, 1_000_000, soft=100)

    first, second = take(worker, client, "talker"), take(worker, client, "talker")

    (told,) = event_data(client, first, "budget.warned")
    assert (told["measure"], told["soft_limit"]) == ("tokens", "100")
    assert event_data(client, second, "budget.warned") == []


def test_a_call_of_which_nobody_knows_keeps_what_was_reserved(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 1_000_000)
    allow(database, 1_000_000, measure=Measure.STEPS)

    run_id = take(worker, client, "failing")

    assert worker.row(run_id).phase == "waiting_timer"
    budget = seen(database)
    assert budget.used == 0
    assert budget.in_doubt == budget.reserved > OUTPUT_TOKENS
    assert seen(database, Measure.STEPS).reserved == 0, "the step is taken again, and counts once"
    assert audit(database) == []


def hold(hand: Hand, run_id: RunId, tokens: int) -> claims.Claim:
    """A worker's claim with so much reserved, as while its model is being asked."""
    claim = hand.claim(run_id)
    needs = {Measure.TOKENS: Decimal(tokens), Measure.STEPS: Decimal(1)}
    with hand.database.connect() as connection:
        assert budgets.reserve(connection, claim, needs) == []
    return claim


def test_a_lost_claims_tokens_stay_reserved_and_its_step_is_counted_once(
    database: Database,
) -> None:
    hand = Hand(database)
    run_id = hand.start()
    allow(database, 1000)
    allow(database, 1000, measure=Measure.STEPS)
    lost = hold(hand, run_id, 300)
    with database.connect() as connection:
        assert claims.release(connection, lost)

    hold(hand, run_id, 300)

    assert amounts(seen(database)) == (0, 600, 300)
    assert seen(database, Measure.STEPS).reserved == 1
    assert audit(database) == []


def test_reserving_again_under_the_same_claim_reserves_nothing_more(database: Database) -> None:
    hand = Hand(database)
    run_id = hand.start()
    allow(database, 1000)
    claim = hold(hand, run_id, 300)

    with database.connect() as connection:
        assert budgets.reserve(connection, claim, {Measure.TOKENS: Decimal(900)}) == []

    assert seen(database).reserved == 300


def test_what_calls_in_flight_hold_is_waited_for_and_not_refused(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 6000, on_exceeded="fail")
    hand = Hand(database)
    holder = hand.start()
    claim = hold(hand, holder, 3000)

    waiting = take(worker, client, "talker")

    assert worker.row(waiting).phase == "waiting_budget"
    assert event_data(client, waiting, "budget.exceeded") == []
    assert wake(database) == []

    with database.connect() as connection:  # the call is over, and nobody knows what it cost
        assert claims.release(connection, claim)
    assert wake(database) == [waiting], "there will be no room, and so it ends"
    take_on(worker, waiting)
    assert worker.row(waiting).outcome == "limit_exceeded"


def test_a_run_goes_on_in_its_threads_order_when_there_is_room(
    database: Database, worker: Worker, client: Client
) -> None:
    allow(database, 10)
    first = take(worker, client, "talker", thread_id="t-1")
    second = client.start("talker", "go", user_id=ALICE, thread_id="t-1").run_id

    assert worker.row(second).phase == "waiting_thread"
    client.cancel(first)

    assert (worker.row(first).status, worker.row(second).status) == ("cancelled", "queued")


def test_a_top_up_that_is_told_again_under_its_key_is_made_once(database: Database) -> None:
    allow(database, 100)

    top_up(database, 50, "invoice-7")
    assert top_up(database, 50, "invoice-7").hard_limit == 150
    with pytest.raises(Conflict, match="belongs to a top-up of 50"):
        top_up(database, 60, "invoice-7")

    assert seen(database).hard_limit == 150
    with database.connect() as connection:
        noted = connection.exec_driver_sql(
            "SELECT action, actor, detail FROM celeriac.audit ORDER BY audit_id"
        ).all()
    assert [(row[0], row[1]) for row in noted] == [("budget.set", BOB), ("budget.top_up", BOB)]
    assert noted[1][2]["budget"]["hard_limit"] == "150"


def test_what_cannot_be_a_budget_is_refused(database: Database) -> None:
    with pytest.raises(UnknownThread):
        allow(database, 1, scope="thread", subject="t-none")
    with pytest.raises(UnknownRun):
        allow(database, 1, scope="run", subject="r-none")
    with pytest.raises(InvalidInput, match="is not this tenant"):
        allow(database, 1, scope="tenant", subject="other")
    with pytest.raises(InvalidInput, match="above the hard limit"):
        allow(database, 1, soft=2)
    with pytest.raises(InvalidInput, match="must be a number from 0"):
        allow(database, "NaN")
    with pytest.raises(UnknownBudget):
        top_up(database, 1)
    allow(database)
    with pytest.raises(Conflict, match="no hard limit"):
        top_up(database, 1)
    for amount in (0, -1, "Infinity"):
        with pytest.raises(InvalidInput, match="cannot be made"):
            top_up(database, amount)


def test_a_use_that_was_not_reserved_is_counted_all_the_same(database: Database) -> None:
    hand = Hand(database)
    run_id = hand.start()
    hand.claim(run_id)
    allow(database, 1000)
    with database.connect() as connection:
        held = hand.row(run_id)
        connection.exec_driver_sql(
            "SELECT celeriac.settle(%s, 0, %s, %s::jsonb, '[]'::jsonb)",
            (run_id, held.epoch, '{"tokens": "70"}'),
        )

    assert amounts(seen(database)) == (70, 0, 0)
    assert audit(database) == []


def test_an_entry_is_settled_once_and_a_budget_keeps_its_subject(database: Database) -> None:
    hand = Hand(database)
    run_id = hand.start()
    allow(database, 1000)
    claim = hold(hand, run_id, 300)
    settle = "SELECT celeriac.settle(%s, 0, %s, %s::jsonb, '[]'::jsonb)"
    for used in ("70", "90"):
        with database.connect() as connection:
            uses = f'{{"tokens": "{used}"}}'
            if used == "70":
                connection.exec_driver_sql(settle, (run_id, claim.epoch, uses))
                continue
            with pytest.raises(DBAPIError):  # another entry of the same claim
                connection.exec_driver_sql(settle, (run_id, claim.epoch, uses))

    for change in (
        "UPDATE celeriac.budget_entries SET used = 1",
        "UPDATE celeriac.budgets SET subject = 'bob'",
        "DELETE FROM celeriac.budgets",
        "UPDATE celeriac.budget_changes SET amount = 1",
    ):
        with pytest.raises(DBAPIError), database.connect() as connection:
            connection.exec_driver_sql(change)

    assert amounts(seen(database)) == (70, 0, 0)
    assert audit(database) == []
