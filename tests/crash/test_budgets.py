"""Workers die around a reservation: nothing is billed, or counted, twice without a trace."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from celeriac.reports import Budget, Run
from celeriac.states import RunStatus
from tests.crash import budget_agents
from tests.crash.budget_agents import TURN_TOKENS
from tests.crash.stack import Stack, count_killed
from tests.processes import TestProcess
from tests.provider_server import ProviderServer, Reply
from tests.waiting import eventually

AGENTS = budget_agents.__name__
CALLS = 5  # that the provider asks for, one after the other: think steps 0, 2 … 10
BILL = 18  # tokens of each of its answers
FRUGAL_RUNS = 50
SLOTS = 4
WORKERS = 4


def next_answer(request: dict[str, Any]) -> Reply:
    """The next of `CALLS` calls, and then the last word, by what the model was sent."""
    told = sum(message["role"] == "tool" for message in request["messages"])
    if told == CALLS:
        return Reply.text("done")
    return Reply.tool_call("tally", f'{{"label": "{told}"}}', f"call_{told}")


@pytest.fixture
def provider(stack: Stack) -> Iterator[ProviderServer]:
    with ProviderServer(next_answer) as server:
        stack.processes.environment["BILLING_URL"] = server.url
        yield server


def budget(stack: Stack, measure: str) -> Budget:
    (found,) = [each for each in stack.client.budgets() if each.measure == measure]
    return found


def start_workers(stack: Stack, places: list[str]) -> list[TestProcess]:
    points = ",".join(f"{place}=kill" for place in places)
    return stack.processes.start_workers(len(places) + 1, AGENTS, test_points=points)


def take_through(stack: Stack, places: list[str]) -> Run:
    """A run of the agent that is billed, of which a worker dies at each of the places."""
    for measure in ("tokens", "usd", "steps", "tool_calls", "seconds"):
        stack.client.set_budget("user", "local", measure, hard_limit=100_000)
    stack.start_scheduler()
    workers = start_workers(stack, places)

    run = stack.completed(stack.start("billed"))

    eventually(
        lambda: count_killed(workers), until=lambda n: n == len(places), what="the deaths asked for"
    )
    assert [stack.processes.reached(place) for place in places] == [True] * len(places)
    assert stack.tally(run.run_id) == [str(number) for number in range(CALLS)]
    assert stack.violations() == []
    return run


# features: 004-06
def test_five_crashes_bill_each_call_once_and_once_more_per_crash_during_it(
    stack: Stack, provider: ProviderServer
) -> None:
    before = ["step.after_reserve@2", "think.before_model_call@4"]
    during = ["think.after_model_call@6", "step.before_commit@8"]

    run = take_through(stack, [*before, *during, "step.after_commit@9"])

    ((distinct,),) = stack.query(
        "SELECT count(DISTINCT step) FROM celeriac.model_calls WHERE run_id = %s", run.run_id
    )
    assert distinct == CALLS + 1
    assert len(provider.requests) == distinct + len(during)
    tokens = budget(stack, "tokens")
    assert tokens.used == distinct * BILL
    assert tokens.in_doubt == tokens.reserved
    ((lost,),) = stack.query(
        "SELECT count(*) FROM celeriac.budget_entries JOIN celeriac.budgets USING (budget_id)"
        " WHERE measure = 'tokens' AND budget_entries.used IS NULL"
    )
    assert lost == len(before) + len(during)
    assert run.use.usd == distinct * (11 * Decimal("0.000001") + 7 * Decimal("0.00001"))
    assert budget(stack, "usd").used == run.use.usd


@pytest.mark.parametrize(
    ("place", "bills_again", "stays_reserved"),
    [
        ("step.before_reserve@2", False, False),
        ("step.after_reserve@2", False, True),
        ("think.before_model_call@2", False, True),
        ("think.after_model_call@2", True, True),
        ("step.before_commit@2", True, True),
        ("step.after_commit@2", False, False),
        ("step.before_reserve@3", False, False),
        ("step.after_reserve@3", False, False),
        ("act.after_tool@3", False, False),
        ("step.before_commit@3", False, False),
        ("step.after_commit@3", False, False),
    ],
)
def test_a_kill_around_a_reservation_loses_and_doubles_nothing(
    stack: Stack, provider: ProviderServer, place: str, bills_again: bool, stays_reserved: bool
) -> None:
    take_through(stack, [place])

    assert len(provider.requests) == CALLS + 1 + bills_again
    tokens = budget(stack, "tokens")
    assert tokens.used == (CALLS + 1) * BILL
    assert (tokens.in_doubt > 0) is stays_reserved
    for measure, used in (("steps", 2 * CALLS + 1), ("tool_calls", CALLS)):
        counted = budget(stack, measure)
        assert (counted.used, counted.reserved) == (Decimal(used), Decimal(0)), measure


def test_fifty_runs_that_share_a_budget_never_pass_it_by_more_than_the_calls_in_flight(
    stack: Stack,
) -> None:
    limit = FRUGAL_RUNS * 3 * TURN_TOKENS * 5 // 6
    stack.client.set_budget("user", "local", "tokens", hard_limit=limit, on_exceeded="fail")
    stack.client.set_budget("tenant", "default", "tokens", hard_limit=10 * limit)
    stack.client.set_budget("user", "local", "steps", hard_limit=10 * limit)
    stack.start_scheduler()
    stack.processes.start_workers(WORKERS, AGENTS, slots=SLOTS)
    highest = Decimal(0)

    started = [stack.start("frugal") for _ in range(FRUGAL_RUNS)]
    runs = []
    for run_id in started:
        runs.append(stack.wait(run_id))
        highest = max(highest, mine(stack).used)

    assert highest <= limit + WORKERS * SLOTS * TURN_TOKENS
    completed = [run for run in runs if run.status is RunStatus.COMPLETED]
    exceeded = [run for run in runs if run.outcome == "limit_exceeded"]
    assert len(completed) + len(exceeded) == FRUGAL_RUNS
    assert completed, "the budget was not used"
    assert exceeded, "the budget stopped nobody"
    assert mine(stack).used > limit - 2 * TURN_TOKENS
    assert mine(stack).reserved == 0
    assert stack.query("SELECT sum(strikes), sum(deaths) FROM celeriac.runs") == [(0, 0)]
    assert stack.violations() == []


def mine(stack: Stack) -> Budget:
    (found,) = [each for each in stack.client.budgets("user", "local") if each.measure == "tokens"]
    return found
