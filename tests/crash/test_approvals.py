"""A person's decision outlives the worker that asked, and is used once, whoever dies when."""

# features: 000-29, 000-35, 002-31, 004-48, 004-51
import time

import pytest

from celeriac.reports import Approval
from celeriac.states import Phase, RunStatus
from tests.crash import approval_agents
from tests.crash.stack import DONE_SECONDS, Stack
from tests.processes import TestProcess
from tests.waiting import eventually

AGENTS = approval_agents.__name__


def start_worker(stack: Stack, test_points: str = "") -> TestProcess:
    return stack.processes.start_worker(AGENTS, test_points=test_points)


def proposed(stack: Stack) -> tuple[str, Approval]:
    """A run that waits for a person, and what it proposes."""
    run_id = stack.start("refunds")
    eventually(
        lambda: stack.run(run_id),
        until=lambda run: run.phase is Phase.WAITING_APPROVAL,
        deadline_seconds=DONE_SECONDS,
        what=f"run {run_id} waits for a decision",
    )
    (proposal,) = stack.client.approvals(run_id=run_id, by="alice")
    return run_id, proposal


@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_a_decision_made_while_no_worker_lives_is_carried_out_by_the_next_one(
    stack: Stack,
) -> None:
    stack.start_scheduler()
    first = start_worker(stack)
    run_id, proposal = proposed(stack)
    first.kill_group()

    stack.client.approve(proposal.approval_id, by="alice")
    assert stack.calls(run_id, "refund") == []
    start_worker(stack)

    run = stack.completed(run_id)
    assert len(stack.calls(run_id, "refund")) == 1
    assert stack.tally(run_id) == ["seen"], "the sibling that needed nobody was made once"
    assert [effect.state for effect in run.effects] == ["committed", "committed"]
    assert stack.violations() == []


def test_a_paused_run_is_left_alone_by_all_who_live(stack: Stack) -> None:
    stack.start_scheduler()
    start_worker(stack)
    run_id, _ = proposed(stack)
    last = stack.run(run_id)
    before = stack.events(run_id)

    # The scheduler's slowest duties have come round twice.
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert stack.calls(run_id, "refund") == []
        time.sleep(0.1)

    assert stack.run(run_id) == last
    assert stack.events(run_id) == before
    assert len(stack.query("SELECT FROM celeriac.model_calls WHERE run_id = %s", run_id)) == 1


@pytest.mark.parametrize("point", ["act.before_in_flight", "step.after_load"])
def test_a_death_before_the_decision_is_used_costs_nothing(stack: Stack, point: str) -> None:
    stack.start_scheduler()
    start_worker(stack, f"{point}@2=kill")
    run_id, proposal = proposed(stack)

    stack.client.approve(proposal.approval_id, by="alice")
    eventually(lambda: stack.processes.reached(f"{point}@2"), deadline_seconds=DONE_SECONDS)
    start_worker(stack)

    stack.completed(run_id)
    assert len(stack.calls(run_id, "refund")) == 1
    assert stack.violations() == []


@pytest.mark.parametrize(("point", "made"), [("act.before_call", 0), ("act.after_call", 1)])
def test_a_death_after_the_decision_was_used_never_calls_again_by_it(
    stack: Stack, point: str, made: int
) -> None:
    stack.start_scheduler()
    start_worker(stack, f"{point}@2=kill")
    run_id, proposal = proposed(stack)

    stack.client.approve(proposal.approval_id, by="alice")
    eventually(lambda: stack.processes.reached(f"{point}@2"), deadline_seconds=DONE_SECONDS)
    start_worker(stack)

    run = stack.wait(run_id)
    assert run.status is RunStatus.NEEDS_ATTENTION
    assert len(stack.calls(run_id, "refund")) == made
    ((attempts, consumed),) = stack.query(
        "SELECT count(*), min(consumed_by_attempt) FROM celeriac.effect_attempts"
        " JOIN celeriac.approvals USING (approval_id) WHERE effect_attempts.run_id = %s",
        run_id,
    )
    assert (attempts, consumed) == (1, 1)
    assert stack.violations() == []


def test_the_scheduler_expires_what_nobody_decides_and_the_run_goes_on(stack: Stack) -> None:
    stack.start_scheduler()
    start_worker(stack)
    run_id, proposal = proposed(stack)

    with stack.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("UPDATE celeriac.approvals SET expires_at = clock_timestamp()")

    stack.completed(run_id)
    assert stack.client.approval(proposal.approval_id).status == "expired"
    assert stack.calls(run_id, "refund") == []
    assert stack.violations() == []
