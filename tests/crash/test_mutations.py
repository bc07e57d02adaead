"""Each protection is load-bearing: the same scenario ends well with it and badly without it.

The scenarios return what is wrong at their end; `tests.crash.mutants` holds the protections.
"""

import pytest
import redis

from celeriac.states import EffectState, RunStatus
from celeriac_storage.resolving import NotDone
from tests.crash.stack import OrderDesk, Stack
from tests.waiting import PATIENCE_SECONDS, eventually

THINK, NOTIFY = 2, 1


def mutate(stack: Stack, mutant: str | None) -> None:
    stack.processes.environment["CRASH_TEST_MUTANT"] = mutant or ""


def ends(stack: Stack, run_id: str) -> bool:
    """Whether the run is completed: without a protection a few seconds show that it is not."""
    is_mutated = stack.processes.environment["CRASH_TEST_MUTANT"] != ""
    try:
        run = stack.client.wait(run_id, timeout_seconds=4 if is_mutated else PATIENCE_SECONDS)
    except TimeoutError:
        return False
    return run.status is RunStatus.COMPLETED


def commits_of_a_superseded_worker(stack: Stack) -> int:
    """A worker freezes in a thought, another one claims the same step, the first one wakes up."""
    stack.start_scheduler(lease_seconds=1)
    place = f"think.after_model_call@{THINK}"
    zombie = stack.start_worker(test_points=f"{place}=stop", lease_seconds=1)
    run_id = stack.start("counter")
    eventually(lambda: stack.processes.reached(place), what="the worker frozen")
    slow = f"think.before_model_call@{THINK}"
    stack.start_worker(test_points=f"{slow}=30", lease_seconds=1)
    eventually(lambda: stack.processes.reached(slow), what="the step claimed again")
    ((claim,),) = stack.query("SELECT claim_token FROM celeriac.runs WHERE run_id = %s", run_id)

    zombie.thaw()

    def has_tried() -> bool:
        return "this worker's claim of step" in zombie.output or stack.run(run_id).step > THINK

    eventually(has_tried, what="the woken worker's commit")
    ((still_claimed,),) = stack.query(
        "SELECT coalesce(claim_token = %s, false) FROM celeriac.runs WHERE run_id = %s",
        claim,
        run_id,
    )
    return 0 if still_claimed else 1


# features: 002-13, 003-23
@pytest.mark.parametrize(("mutant", "wrong"), [(None, 0), ("no_token_fence", 1)])
def test_the_token_keeps_a_superseded_worker_from_committing(
    stack: Stack, mutant: str | None, wrong: int
) -> None:
    mutate(stack, mutant)

    assert commits_of_a_superseded_worker(stack) == wrong
    assert mutant or stack.violations() == []


def silent_repetitions(desk: OrderDesk) -> int:
    """A worker dies after an external call that is not yet recorded."""
    desk.start_scheduler()
    points = f"act.after_call@{NOTIFY}=kill,act.after_tool@{NOTIFY}=kill"
    desk.start_workers(2, test_points=points)
    order_id = "O-" + desk.broker.queue
    run = desk.wait(desk.start("notifier", order_id))
    asked = [request for request in desk.service.requests if request[0] == run.effects[0].key]
    assert asked
    return len(asked) - 1


# features: 002-13, 002-20, 000-13
@pytest.mark.parametrize(("mutant", "wrong"), [(None, 0), ("no_in_flight_record", 1)])
def test_the_record_in_flight_keeps_a_call_from_being_repeated_silently(
    desk: OrderDesk, mutant: str | None, wrong: int
) -> None:
    mutate(desk, mutant)

    assert silent_repetitions(desk) == wrong
    assert mutant or desk.violations() == []


def doubled_deliveries(desk: OrderDesk) -> int:
    """A worker dies after an external call, and a person wrongly says that it was not made."""
    desk.start_scheduler()
    desk.start_workers(2, test_points=f"act.after_call@{NOTIFY}=kill")
    order_id = f"O-{desk.processes.started[0].pid}"
    before = len(desk.service.deliveries)
    run = desk.wait(desk.start("notifier", order_id))
    assert run.status is RunStatus.NEEDS_ATTENTION
    assert run.effects[0].state is EffectState.UNKNOWN
    desk.client.resolve(run.run_id, run.effects[0].call_id, NotDone())
    desk.completed(run.run_id)
    return len(desk.service.deliveries) - before - 1


# features: 000-12, 002-13, 002-19
@pytest.mark.parametrize(("mutant", "wrong"), [(None, 0), ("no_effect_key", 1)])
def test_the_effect_key_keeps_a_target_from_doing_it_twice(
    desk: OrderDesk, mutant: str | None, wrong: int
) -> None:
    mutate(desk, mutant)

    assert doubled_deliveries(desk) == wrong
    assert mutant or desk.violations() == []


def lost_runs(stack: Stack) -> int:
    """Redis forgets the message of a queued step while all workers live."""
    stack.start_scheduler()
    stack.start_worker(slots=1)
    held = stack.start("waiter")
    stack.wait_for_call(held, "wait_at")
    queued = stack.start("counter")
    client = redis.Redis.from_url(stack.broker.url)
    eventually(lambda: client.llen(stack.broker.queue), what="the step on the broker")
    client.flushdb()
    stack.open_gate("gate")
    stack.completed(held)
    return 0 if ends(stack, queued) else 1


# features: 002-13, 003-13
@pytest.mark.parametrize(("mutant", "wrong"), [(None, 0), ("no_redispatch", 1)])
def test_the_redispatch_brings_back_what_the_broker_forgot(
    stack: Stack, mutant: str | None, wrong: int
) -> None:
    mutate(stack, mutant)

    assert lost_runs(stack) == wrong
    assert mutant or stack.violations() == []


def stranded_runs(stack: Stack) -> int:
    """A client is gone after it committed a run and before it published it."""
    stack.start_scheduler()
    stack.start_worker()
    return 0 if ends(stack, stack.start("counter")) else 1


@pytest.mark.parametrize(("mutant", "wrong"), [(None, 0), ("no_publishing_of_new_steps", 1)])
def test_the_scheduler_publishes_what_nobody_published(
    stack: Stack, mutant: str | None, wrong: int
) -> None:
    mutate(stack, mutant)

    assert stranded_runs(stack) == wrong
    assert mutant or stack.violations() == []
