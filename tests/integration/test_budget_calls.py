"""Which calls and steps a budget counts, and once: elsewhere, by children, lost ones and undos."""

# features: 004-06
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from celeriac import Agent, ToolContext, WorkflowContext, tool, workflow
from celeriac.client import Client, Failed
from celeriac.ids import DEFAULT_TENANT, CallId
from celeriac.recovery import NotDone
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say
from celeriac.states import RunStatus
from celeriac_storage import budgets, pruning, waking
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from tests.family import Family
from tests.talk import Calls, Talk
from tests.undo_shop import LOOK, SHIP, TAKE, Shop, Tools

TWO_SCANS: Calls = [("scan", {"shelf": "a"}), ("scan", {"shelf": "b"})]
TWO_NOTES: Calls = [("note", {"text": "a"}), ("note", {"text": "b"})]
FIRST, SECOND = CallId("0.0"), CallId("0.1")


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    with Client(database.url) as client:
        yield client


def allow(client: Client, measure: str, hard: int = 100, **options: Any) -> None:
    client.set_budget("tenant", DEFAULT_TENANT, measure, hard_limit=hard, **options)


def used(client: Client, measure: str) -> tuple[int, int]:
    """What is used, and what is reserved."""
    (found,) = [each for each in client.budgets() if each.measure == measure]
    return int(found.used), int(found.reserved)


@pytest.fixture
def talk(database: Database, broker_url: str) -> Iterator[Talk]:
    talk = Talk(database, broker_url, TWO_SCANS)
    yield talk
    talk.close()


@pytest.fixture
def noting(database: Database, broker_url: str) -> Iterator[Talk]:
    talk = Talk(database, broker_url, TWO_NOTES)
    yield talk
    talk.close()


def test_calls_that_another_process_makes_are_counted_when_they_are_handed_out(
    talk: Talk, client: Client
) -> None:
    allow(client, "tool_calls")
    talk.start()
    talk.go_on()
    assert talk.stands == ("paused", "waiting_external")
    assert used(client, "tool_calls") == (2, 0)

    client.submit(talk.run_id, {FIRST: "empty", SECOND: Failed("dark")})

    assert talk.go_on() is RunStatus.COMPLETED
    assert used(client, "tool_calls") == (2, 0), "what is told of them counts nothing more"


def test_no_call_is_handed_out_that_a_budget_does_not_allow(talk: Talk, client: Client) -> None:
    allow(client, "tool_calls", 1)

    talk.start()
    talk.go_on()

    assert talk.stands == ("paused", "waiting_budget")
    assert talk.states == ["planned", "planned"]
    assert used(client, "tool_calls") == (0, 0)


def test_a_cancel_while_they_are_made_counts_them_no_second_time(
    talk: Talk, client: Client
) -> None:
    allow(client, "tool_calls")
    talk.start()
    talk.go_on()

    client.cancel(talk.run_id)
    talk.go_on()

    assert talk.states == ["unknown", "unknown"]
    assert used(client, "tool_calls") == (2, 0)


def test_a_call_that_another_run_answers_is_one_and_what_that_calls_is_its_own(
    database: Database, broker_url: str, client: Client
) -> None:
    @tool(effect="none")
    def look() -> str:
        """Look."""
        return "fine"

    helper = Agent("helper", ScriptedModel([call("look"), say("done")]), tools=[look])
    both = Turn(calls=(ToolCall("helper", {"input": "a"}), ToolCall("helper", {"input": "b"})))
    boss = Agent("boss", ScriptedModel([both, say("all")]), tools=[helper.as_tool()])
    family = Family(database.url, broker_url, [helper, boss])
    allow(client, "tool_calls")
    run_id = family.start("boss")
    client.set_budget("run", run_id, "tool_calls", hard_limit=2)

    family.go_on()

    assert family.run(run_id).status is RunStatus.COMPLETED
    counted = {each.scope: each.used for each in client.budgets()}
    assert counted == {"tenant": 4, "run": 2}
    assert family.violations() == []
    family.close()


def test_a_call_that_only_seemed_to_work_is_counted_once(
    database: Database, broker_url: str, client: Client
) -> None:
    def find(ctx: ToolContext) -> NotDone:  # noqa: ARG001 - what a verify is given
        return NotDone()

    @tool(effect="external", verify=find)
    def order() -> str:
        """Order one."""
        return "OK"

    family = Family(
        database.url,
        broker_url,
        [Agent("clerk", ScriptedModel([call("order"), say("done")]), tools=[order])],
    )
    allow(client, "tool_calls")
    run_id = family.start("clerk")

    family.go_on()
    assert family.states(run_id) == ["unknown"]
    assert used(client, "tool_calls") == (1, 0)
    while family.run(run_id).status is RunStatus.PAUSED:  # it looks once more, a little later
        family.execute("UPDATE celeriac.runs SET wake_at = now() WHERE phase = 'waiting_timer'")
        with database.connect() as connection:
            waking.take_due_timers(connection)
        family.go_on()

    assert family.states(run_id) == ["known_bad"]
    assert used(client, "tool_calls") == (1, 0)
    family.close()


def test_what_takes_calls_back_is_counted_and_never_refused(
    database: Database, broker_url: str, client: Client
) -> None:
    shop = Shop(database, broker_url, Tools(), [LOOK, TAKE])
    allow(client, "tool_calls", 2)
    allow(client, "steps", 5)
    run_id = shop.done()
    assert (used(client, "tool_calls"), used(client, "steps")) == ((2, 0), (5, 0))

    undone = shop.roll_back(run_id)

    assert undone.status is RunStatus.COMPLETED
    assert used(client, "tool_calls") == (3, 0)
    assert used(client, "steps") == (8, 0)
    assert shop.violations() == []
    shop.close()


def test_words_and_calls_that_are_not_made_take_steps_that_a_budget_may_refuse(
    noting: Talk, client: Client
) -> None:
    run_id = noting.start()
    noting.during_call = [lambda: client.interrupt(run_id)]
    noting.go_on()
    assert noting.stands == ("paused", "waiting_user")
    allow(client, "steps", 0)

    client.say(run_id, "no, stop that")
    noting.go_on()

    assert noting.stands == ("paused", "waiting_budget"), "it told the model of its other call"
    assert noting.states == ["committed", "planned"]

    client.top_up_budget("tenant", DEFAULT_TENANT, "steps", 2)
    with noting.database.connect() as connection:
        assert [due.run_id for due in budgets.wake_for_room(connection)] == [run_id]
    assert noting.go_on() is RunStatus.COMPLETED
    assert noting.states == ["committed", "rejected"]
    assert used(client, "steps") == (2, 0)


def test_a_said_word_takes_a_step_that_a_budget_may_refuse(noting: Talk, client: Client) -> None:
    run_id = noting.start()
    client.say(run_id, "one more thing")
    allow(client, "steps", 0)

    noting.go_on()

    assert noting.stands == ("paused", "waiting_budget")
    assert (noting.row.step, noting.row.words_waiting) == (0, 1)


def test_the_turns_of_a_workflow_are_steps_and_its_activities_calls(
    database: Database, broker_url: str, client: Client
) -> None:
    @tool(effect="none")
    def look(what: str) -> str:
        """Look."""
        return f"{what} is fine"

    @workflow(tools=[look])
    async def looking(ctx: WorkflowContext) -> str:
        return await ctx.activity(look, what="it")

    family = Family(database.url, broker_url, [looking])
    allow(client, "steps", 0)
    allow(client, "tool_calls")
    run_id = family.start("looking", None)

    family.go_on()

    assert family.run(run_id).phase == "waiting_budget"
    client.top_up_budget("tenant", DEFAULT_TENANT, "steps", 100)
    with database.connect() as connection:
        assert [due.run_id for due in budgets.wake_for_room(connection)] == [run_id]
    family.go_on()

    assert family.run(run_id).result == "it is fine"
    assert used(client, "tool_calls") == (1, 0)
    ((steps,),) = family.rows("SELECT sum(step) FROM celeriac.runs")
    assert used(client, "steps") == (steps, 0)
    assert family.violations() == []
    family.close()


def test_a_pruned_run_still_says_what_it_used(
    database: Database, broker_url: str, client: Client
) -> None:
    shop = Shop(database, broker_url, Tools(), [LOOK, SHIP])
    run_id = shop.done()
    with database.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE celeriac.model_calls DISABLE TRIGGER USER")
        connection.exec_driver_sql("UPDATE celeriac.model_calls SET cost = 0.25 WHERE step = 0")
        connection.exec_driver_sql("ALTER TABLE celeriac.model_calls ENABLE TRIGGER USER")
    before = client.get(run_id).use
    assert (before.usd, before.unpriced_calls) == (Decimal("0.25"), 2)
    assert before.input_tokens > 0

    pruning.prune(database, pruning.Policy(older_than_days=0))

    assert client.get(run_id).use == before
    assert audit(database) == []
    shop.close()
