"""What dies: a pool's child, a worker with all that it holds, the scheduler, or a step's own
killer.

And what only stops: a worker that is told to, with steps in flight.
"""

import os
import signal

import pytest

from celeriac.states import Phase, RunStatus
from tests.crash.stack import AGENTS, Stack
from tests.waiting import eventually

WAITING = 3  # the step in which `waiter` waits at its gate


def begin_waiting(stack: Stack, runs: int = 1) -> list[str]:
    """Runs that are held in the middle of a call, until the gate opens."""
    waiting = [stack.start("waiter") for _ in range(runs)]
    for run_id in waiting:
        stack.wait_for_call(run_id, "wait_at")
    return waiting


def assert_counted_once(stack: Stack, runs: list[str], labels: list[str]) -> None:
    for run_id in runs:
        stack.completed(run_id)
        assert stack.tally(run_id) == labels
    assert stack.violations() == []


# features: 003-12, 003-22, 004-58
@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_all_runs_of_a_killed_worker_are_finished_by_another(stack: Stack) -> None:
    stack.start_scheduler()
    workers = stack.start_workers(2)
    waiting = begin_waiting(stack, runs=10)
    victim = stack.holder(waiting[0], workers)
    held = [run_id for run_id in waiting if stack.holder(run_id, workers) is victim]

    victim.kill_group()

    for run_id in held:
        stack.wait_for_call(run_id, "wait_at", times=2)
    stack.open_gate("gate")
    assert_counted_once(stack, waiting, ["before", "after"])
    assert {run_id for run_id in waiting if stack.run(run_id).deaths} == set(held)
    assert stack.verdicts() == ["lifeline"]


# features: 003-12
def test_a_killed_child_of_a_prefork_pool_takes_only_its_own_step_along(stack: Stack) -> None:
    stack.start_scheduler()
    worker = stack.start_worker(pool="prefork", slots=3)
    waiting = begin_waiting(stack, runs=2)
    ((victim, _),) = stack.calls(waiting[0], "wait_at")

    os.kill(victim, signal.SIGKILL)

    stack.wait_for_call(waiting[0], "wait_at", times=2)
    stack.open_gate("gate")
    assert_counted_once(stack, waiting, ["before", "after"])
    assert [stack.run(run_id).deaths for run_id in waiting] == [1, 0]
    assert stack.verdicts() == ["lifeline"]
    # The pool has replaced it, under a name of its own.
    eventually(
        lambda: len(stack.processes.worker_ids(worker)), until=lambda n: n == 3, what="3 children"
    )


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_an_agent_runs_in_each_kind_of_pool(stack: Stack, pool: str) -> None:
    stack.start_scheduler()
    stack.start_worker(pool=pool, slots=2)

    run = stack.completed(stack.start("counter"))

    assert run.epoch == len(run.steps)  # each step claimed once
    assert_counted_once(stack, [run.run_id], ["one", "three"])


# features: 003-13
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_another_scheduler_leads_when_the_leader_is_killed_or_frozen(
    stack: Stack, end: signal.Signals
) -> None:
    first = stack.start_scheduler()
    stack.start_scheduler()
    stack.start_worker()
    stack.completed(stack.start("counter"))

    (first.kill_group if end is signal.SIGKILL else first.freeze)()
    run = stack.completed(stack.start("counter"))  # nobody but a leader publishes its first step

    if end is signal.SIGSTOP:
        # It wakes believing that it leads still: two at once do no harm.
        first.thaw()
        run = stack.completed(stack.start("counter"))
    assert run.epoch == len(run.steps)
    assert_counted_once(stack, [run.run_id], ["one", "three"])


def test_two_schedulers_that_both_lead_have_each_step_claimed_once(stack: Stack) -> None:
    stack.start_scheduler()
    stack.start_scheduler()
    # As after a long pause of the first one: each believes that the other's term is over.
    stack.execute(
        "CREATE FUNCTION crash.everybody_leads() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN NEW.held_until := now() - interval ''1 second''; RETURN NEW; END';"
        "CREATE TRIGGER everybody_leads BEFORE INSERT OR UPDATE ON celeriac.leaders"
        " FOR EACH ROW EXECUTE FUNCTION crash.everybody_leads()"
    )
    workers = stack.start_workers(2)
    waiting = begin_waiting(stack, runs=6)

    stack.holder(waiting[0], workers).kill_group()
    stack.open_gate("gate")

    assert_counted_once(stack, waiting, ["before", "after"])
    for run in map(stack.run, waiting):
        assert run.epoch == len(run.steps) + run.deaths
    ((holders,),) = stack.query("SELECT count(*) FROM celeriac.leaders")
    assert holders == 1


def test_a_step_that_kills_its_worker_every_time_ends_before_a_person(stack: Stack) -> None:
    stack.start_scheduler()
    stack.start_worker()
    neighbours = begin_waiting(stack, runs=4)

    poisoned = stack.start("poisoned")
    stack.wait_for_call(poisoned, "poison")
    for _ in range(3):  # not waited for: the poison may kill one before it is ready
        stack.processes.start(["worker"], settings={"agents": AGENTS})
    stack.wait_for_call(poisoned, "poison", times=2)
    stack.open_gate("gate")  # a worker lets it in alone when its neighbours are done
    run = stack.wait(poisoned)

    assert run.status is RunStatus.NEEDS_ATTENTION
    assert run.deaths == 3
    assert isinstance(run.error, dict)
    assert run.error["kind"] == "poison"
    killed = stack.calls(poisoned, "poison")
    assert len({pid for pid, _ in killed}) == 3
    assert killed[0][1] == 4
    assert killed[-1][1] == 0  # the third one died alone
    assert stack.verdicts() == ["lifeline"] * 3
    evidence = [event for event in stack.client.events(poisoned) if "recovered" in event.type]
    assert [event.data["reason"] for event in evidence] == ["lifeline"] * 2
    assert_counted_once(stack, neighbours, ["before", "after"])

    # It goes on if somebody retries it after a look, with its strikes forgiven.
    stack.open_gate("cure")
    stack.client.retry(poisoned)
    assert stack.completed(poisoned).result == "done"
    assert stack.violations() == []


# features: 003-12
@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_a_deploy_lets_steps_in_flight_finish_and_repeats_nothing(stack: Stack) -> None:
    stack.start_scheduler()
    old = stack.start_worker()
    waiting = begin_waiting(stack, runs=5)
    new = stack.start_worker()

    old.send(signal.SIGTERM)
    draining = [stack.run(run_id) for run_id in waiting]
    stack.open_gate("gate")

    assert old.wait(15) == 0
    assert {run.status for run in draining} == {RunStatus.RUNNING}
    assert_counted_once(stack, waiting, ["before", "after"])
    (new_id,) = stack.processes.worker_ids(new)
    for run in map(stack.run, waiting):
        assert (run.epoch, run.deaths) == (len(run.steps), 0)
        assert len(stack.calls(run.run_id, "wait_at")) == 1
        assert run.steps[-1].worker_id == new_id
    assert stack.verdicts() == []


# features: 003-12
@pytest.mark.parametrize("pool", ["threads", "solo", "prefork"])
def test_steps_that_outlast_the_grace_are_handed_over_and_nobody_is_called_dead(
    stack: Stack, pool: str
) -> None:
    stack.start_scheduler()
    old = stack.start_worker(grace_seconds=1, pool=pool, slots=4)
    (waiting,) = begin_waiting(stack)
    stack.start_worker()

    old.send(signal.SIGTERM)
    stack.wait_for_call(waiting, "wait_at", times=2)

    assert old.wait() == 0
    stack.open_gate("gate")
    assert_counted_once(stack, [waiting], ["before", "after"])
    assert stack.run(waiting).deaths == 0
    assert stack.verdicts() == []


def test_a_run_without_a_worker_waits_for_one(stack: Stack) -> None:
    stack.start_scheduler()
    worker = stack.start_worker()
    (waiting,) = begin_waiting(stack)
    worker.kill_group()
    parked = eventually(
        lambda: stack.run(waiting),
        until=lambda run: run.phase is Phase.WAITING_WORKER,
        what="the run paused for a worker",
    )
    assert parked.status is RunStatus.PAUSED
    stack.open_gate("gate")

    stack.start_worker()

    assert_counted_once(stack, [waiting], ["before", "after"])
