"""A worker that was only silent: it freezes past its lease, others finish, and then it wakes up.

What it wakes up with is a claim that has passed on. Nothing it still does may be written, and it
goes on as a new worker.
"""

from typing import Any

import pytest

from celeriac.states import EffectState, RunStatus
from tests.crash.stack import OrderDesk
from tests.processes import TestProcess
from tests.waiting import eventually

THINK, DEDUCT, NOTIFY = 2, 3, 5
LEASE_SECONDS = 1


def freeze_and_take_over(desk: OrderDesk, place: str) -> tuple[TestProcess, str]:
    """Order from a worker that freezes at the place, and start another one; the worker and its
    run.
    """
    desk.start_scheduler(lease_seconds=LEASE_SECONDS)
    zombie = desk.start_worker(test_points=f"{place}=stop", lease_seconds=LEASE_SECONDS)
    run_id = desk.order()
    eventually(lambda: desk.processes.reached(place), what=f"{place} reached")
    desk.start_worker(lease_seconds=LEASE_SECONDS)
    return zombie, run_id


def written_rows(desk: OrderDesk, run_id: str) -> list[tuple[Any, ...]]:
    """Everything that a step could still add to the run."""
    return desk.query(
        "SELECT r.step, r.epoch, r.last_event_seq, r.message_count,"
        " (SELECT count(*) FROM celeriac.checkpoints c WHERE c.run_id = r.run_id),"
        " (SELECT count(*) FROM celeriac.effect_attempts a WHERE a.run_id = r.run_id),"
        " (SELECT count(*) FROM celeriac.model_calls m WHERE m.run_id = r.run_id)"
        " FROM celeriac.runs r WHERE run_id = %s",
        run_id,
    )


def thaw_and_reuse(desk: OrderDesk, zombie: TestProcess, run_id: str, *, reports: int = 0) -> None:
    """Wake the worker: it adds nothing to the run but `reports` entries about its own call, takes a
    new name, and can do the next order."""
    (old_id,) = [
        worker
        for (worker,) in desk.query(
            "SELECT worker_id FROM celeriac.workers WHERE pid = %s AND dead_at IS NOT NULL",
            zombie.pid,
        )
    ]
    before = written_rows(desk, run_id)

    zombie.thaw()

    (new_id,) = eventually(
        lambda: desk.processes.worker_ids(zombie),
        what="the zombie alive again",
    )
    assert new_id != old_id
    for process in desk.processes.started[1:]:
        if process is not zombie:
            process.kill_group()
    second = desk.completed(desk.order())
    assert {step.worker_id for step in second.steps} == {new_id}
    # It has had its slots free for a whole order: whatever it wanted to write, it has tried, or is
    # about to.
    ((*history, attempts, model_calls),) = before
    expected = [(*history, attempts + reports, model_calls)]
    eventually(
        lambda: written_rows(desk, run_id),
        until=lambda rows: rows == expected,
        what=f"{reports} entries more than {before}",
    )
    assert desk.verdicts().count("lease") == 1


# features: 003-22, 003-23, 004-58
@pytest.mark.parametrize(
    ("broker", "place"),
    [
        ("redis", f"think.after_model_call@{THINK}"),
        ("redis", f"act.after_tool@{DEDUCT}"),  # in a transaction, with the shop's rows locked
        ("amqp", f"act.after_tool@{DEDUCT}"),
        ("redis", f"act.before_in_flight@{NOTIFY}"),
    ],
)
def test_a_thawed_worker_writes_nothing_into_a_run_that_others_finished(
    desk: OrderDesk, place: str
) -> None:
    zombie, run_id = freeze_and_take_over(desk, place)

    run = desk.completed(run_id)

    step = int(place.partition("@")[2])
    assert run.deaths == 1
    assert run.epoch == len(run.steps) + 1
    assert run.steps[step].worker_id != run.steps[step - 1].worker_id
    desk.assert_done_once(run)
    thaw_and_reuse(desk, zombie, run_id)
    assert desk.violations() == []


# features: 002-20, 003-23
def test_a_worker_frozen_before_an_external_call_tells_what_came_of_it(desk: OrderDesk) -> None:
    zombie, run_id = freeze_and_take_over(desk, f"act.before_call@{NOTIFY}")
    asked = desk.wait(run_id)
    assert asked.status is RunStatus.NEEDS_ATTENTION
    assert [effect.state for effect in asked.effects][-1] is EffectState.UNKNOWN

    # It has yet to make its call: to say `not done` now would be wrong, and only it can know.
    zombie.thaw()

    run = eventually(
        lambda: desk.run(run_id),
        until=lambda run: run.status is RunStatus.COMPLETED,
        what="the run completed by what the thawed worker reported",
    )
    desk.assert_done_once(run)
    assert desk.violations() == []


# features: 002-20, 003-23
def test_a_worker_frozen_after_an_external_call_leaves_its_outcome_to_a_person(
    desk: OrderDesk,
) -> None:
    zombie, run_id = freeze_and_take_over(desk, f"act.after_call@{NOTIFY}")
    asked = desk.wait(run_id)
    assert asked.status is RunStatus.NEEDS_ATTENTION
    assert [effect.state for effect in asked.effects][-1] is EffectState.UNKNOWN

    assert desk.settle_by_ledger(asked)
    run = desk.completed(run_id)

    desk.assert_done_once(run)
    thaw_and_reuse(desk, zombie, run_id, reports=1)
    assert desk.violations() == []
