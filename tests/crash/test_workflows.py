"""Workers die around and in the turns and activities of workflows: what was done is done once."""

import os
from signal import SIGKILL
from uuid import uuid4

import psutil
import pytest
import redis

from celeriac.reports import Run
from celeriac.states import RunStatus
from celeriac_storage.resolving import NotDone, TookEffect
from tests.crash import workflow_agents as agents
from tests.crash.stack import DONE_SECONDS, OrderDesk, Stack, count_killed
from tests.processes import TestProcess
from tests.waiting import eventually

LABELS = [str(number) for number in range(agents.ACTIVITIES)]
TURN = [
    "step.before_claim",
    "step.after_claim",
    "step.after_load",
    "turn.after_code",
    "step.before_commit",
    "turn.before_commit",
    "step.after_commit",
]
# The workflow alone comes to a step above 0; of step 0, its own turn comes first.
PLACES = [f"{point}@{turn}" for turn in range(agents.ACTIVITIES + 1) for point in TURN]


def executions(stack: Stack, run_id: str) -> list[str]:
    """The labels that activities of the run have written in their own transactions, in order."""
    rows = stack.query(
        "SELECT label FROM crash.tally JOIN celeriac.runs USING (run_id)"
        " WHERE parent_run_id = %s ORDER BY tally.ctid",
        run_id,
    )
    return [label for (label,) in rows]


def looks(stack: Stack, run_id: str) -> dict[str, int]:
    """How often each read has begun, by the number of its entry."""
    rows = stack.query(
        "SELECT parent_call_id, count(*) FROM crash.calls JOIN celeriac.runs USING (run_id)"
        " WHERE parent_run_id = %s GROUP BY parent_call_id ORDER BY parent_call_id",
        run_id,
    )
    return dict(rows)


def activities(stack: Stack, run: Run) -> list[tuple[str, int, str]]:
    """Each activity's run: the tool, how many attempts it took, how it ended."""
    return stack.query(
        "SELECT tool, attempt, status FROM celeriac.runs JOIN celeriac.effects USING (run_id)"
        " WHERE parent_run_id = %s ORDER BY created_at, parent_call_id",
        run.run_id,
    )


@pytest.mark.parametrize("place", PLACES)
def test_a_workflow_survives_a_kill_at_every_point_of_every_turn(stack: Stack, place: str) -> None:
    stack.start_scheduler()
    workers = stack.processes.start_workers(2, agents.__name__, test_points=f"{place}=kill")

    run = stack.completed(stack.start("counting", None))

    eventually(lambda: count_killed(workers), until=lambda killed: killed == 1,
               deadline_seconds=DONE_SECONDS, what="one death")  # fmt: skip
    assert stack.processes.reached(place)
    assert run.result == LABELS
    assert executions(stack, run.run_id) == LABELS
    assert activities(stack, run) == [("tally", 1, "completed")] * agents.ACTIVITIES
    assert stack.violations() == []


# features: 004-04
@pytest.mark.parametrize("at", range(agents.ACTIVITIES))
def test_a_kill_in_each_activity_repeats_no_other_one(stack: Stack, at: int) -> None:
    stack.start_scheduler()
    workers = stack.processes.start_workers(2, agents.__name__)

    run = stack.completed(stack.start("dying", at))

    assert count_killed(workers) == 1
    assert run.result == LABELS
    assert executions(stack, run.run_id) == LABELS
    assert looks(stack, run.run_id) == {
        f"0.{2 * number}": 2 if number == at else 1 for number in range(agents.ACTIVITIES)
    }
    assert stack.violations() == []


# features: 003-12
@pytest.mark.parametrize(
    "place", ["turn.after_code@1", "turn.before_commit@1", "step.after_commit@1"]
)
def test_a_turn_whose_child_of_a_prefork_pool_is_killed_is_taken_by_another_child(
    stack: Stack, place: str
) -> None:
    stack.start_scheduler()
    # Held at that place, since a point that kills takes the whole pool along.
    worker = stack.processes.start_worker(
        agents.__name__, test_points=f"{place}=stop", pool="prefork", slots=3
    )
    run_id = stack.start("counting", None)
    (victim,) = eventually(lambda: stopped(worker), what=f"a child held at {place}")

    os.kill(victim, SIGKILL)
    run = stack.completed(run_id)

    assert worker.is_running
    assert run.deaths == int(place != "step.after_commit@1")  # then nobody held it any more
    assert run.result == LABELS
    assert executions(stack, run.run_id) == LABELS
    assert activities(stack, run) == [("tally", 1, "completed")] * agents.ACTIVITIES
    assert stack.verdicts() == ["lifeline"]
    assert stack.violations() == []


def stopped(worker: TestProcess) -> list[int]:
    """The processes of it that are frozen."""
    return [pid for pid in worker.pids if psutil.Process(pid).status() == psutil.STATUS_STOPPED]


# features: 004-04, 004-17
def test_a_fan_of_500_over_two_workers_of_which_one_is_killed_is_made_once(stack: Stack) -> None:
    stack.start_scheduler()
    workers = stack.processes.start_workers(2, agents.__name__)
    labels = [str(number) for number in range(500)]
    run_id = stack.start("fanning", len(labels))
    eventually(
        lambda: len(executions(stack, run_id)),
        until=lambda made: made >= len(labels) // 5,
        deadline_seconds=DONE_SECONDS,
        what="a fifth of the fan",
    )

    workers[0].kill_group()
    made = len(executions(stack, run_id))
    run = stack.client.wait(run_id, timeout_seconds=10 * DONE_SECONDS)

    assert made < len(labels), "it was killed too late to be missed"
    assert (run.status, run.result) == (RunStatus.COMPLETED, labels)
    assert sorted(executions(stack, run_id), key=int) == labels
    assert [(kind, status) for kind, _, status in activities(stack, run)] == [
        ("tally", "completed")
    ] * len(labels)
    ((makers,),) = stack.query(
        "SELECT count(DISTINCT worker_id) FROM celeriac.runs WHERE parent_run_id = %s", run_id
    )
    assert makers == 2
    assert stack.verdicts() == ["lifeline"]
    assert stack.violations() == []


# features: 004-17
def test_three_siblings_overlap_in_time_on_two_workers(stack: Stack) -> None:
    stack.start_scheduler()
    stack.processes.start_workers(2, agents.__name__, slots=2)

    run_id = stack.start("meeting", None)
    eventually(
        lambda: stack.query("SELECT DISTINCT worker_id FROM celeriac.runs WHERE status = 'running'"
                            " AND parent_run_id = %s", run_id),
        until=lambda workers: len(workers) == 2, deadline_seconds=DONE_SECONDS,
        what="two workers that make activities",
    )  # fmt: skip
    eventually(lambda: sum(looks(stack, run_id).values()), until=lambda n: n == agents.SIBLINGS,
               deadline_seconds=DONE_SECONDS, what="all siblings begun")  # fmt: skip
    stack.open_gate("meeting")

    run = stack.completed(run_id)

    # Each began before any had ended.
    ((latest_begin, first_end),) = stack.query(
        "SELECT max(started_at), min(committed_at) FROM celeriac.checkpoints"
        " JOIN celeriac.runs USING (run_id) JOIN celeriac.effects USING (run_id)"
        " WHERE parent_run_id = %s AND tool = 'meet'".replace(
            "started_at", "checkpoints.started_at"
        ),
        run_id,
    )
    assert latest_begin < first_end
    assert executions(stack, run.run_id) == ["0", "1", "2"]
    assert stack.violations() == []


# features: 004-54
@pytest.mark.parametrize("point", ["turn.after_code", "turn.before_commit"])
def test_an_agents_turns_that_were_finished_are_not_taken_again(stack: Stack, point: str) -> None:
    stack.start_scheduler()
    workers = stack.processes.start_workers(2, agents.__name__, test_points=f"{point}@1=kill")

    run = stack.completed(stack.start("trusting", None))

    eventually(lambda: count_killed(workers), until=lambda killed: killed == 1,
               deadline_seconds=DONE_SECONDS, what="one death")  # fmt: skip
    assert run.result == "seen"
    assert executions(stack, run.run_id) == ["seen"]
    assert stack.query(
        "SELECT agent, model_calls.step, attempt FROM celeriac.runs JOIN celeriac.model_calls"
        " USING (run_id) WHERE parent_run_id = %s ORDER BY 2", run.run_id,
    ) == [("looker", 0, 1), ("looker", 2, 1)]  # fmt: skip
    assert stack.query("SELECT count(*) FROM crash.calls WHERE tool = 'look'") == [(1,)]
    assert stack.violations() == []


def deliveries(desk: OrderDesk, order_id: str) -> int:
    return sum(order["order_id"] == order_id for _, order in desk.service.deliveries)


# features: 004-20
@pytest.mark.parametrize(
    ("point", "is_sent"),
    [
        ("act.before_in_flight", None),
        ("act.before_call", False),
        ("act.after_call", True),
    ],
)
def test_a_lost_call_of_an_activity_is_settled_as_any_call(
    desk: OrderDesk, point: str, is_sent: bool | None
) -> None:
    desk.start_scheduler()
    # Only one activity makes a call outside.
    workers = desk.processes.start_workers(2, agents.__name__, test_points=f"{point}@0=kill")

    order_id = f"O-{uuid4().hex[:12]}"
    run_id = desk.start("notifying", order_id)
    if is_sent is not None:
        ((activity, call),) = eventually(
            lambda: desk.query(
                "SELECT run_id, call_id FROM celeriac.effects JOIN celeriac.runs USING (run_id)"
                " WHERE parent_run_id = %s AND state = 'unknown' AND status = 'needs_attention'",
                run_id,
            ),
            deadline_seconds=DONE_SECONDS,
            what="a person is asked about the lost call",
        )
        assert deliveries(desk, order_id) == int(is_sent)
        assert desk.run(run_id).phase == "waiting_activity"
        desk.client.resolve(activity, call, TookEffect("sent") if is_sent else NotDone())

    run = desk.completed(run_id)

    assert count_killed(workers) == 1
    assert deliveries(desk, order_id) == 1
    assert executions(desk, run.run_id) == ["before", "after"]
    assert desk.violations() == []


def test_a_frozen_worker_writes_nothing_of_its_turn_when_it_wakes_up(stack: Stack) -> None:
    stack.start_scheduler(lease_seconds=1)
    zombie = stack.processes.start_worker(
        agents.__name__, test_points="turn.after_code@1=stop", lease_seconds=1
    )
    run_id = stack.start("counting", None)
    eventually(lambda: stack.processes.reached("turn.after_code@1"), what="frozen in its turn")
    stack.processes.start_worker(agents.__name__, lease_seconds=1)

    run = stack.completed(run_id)
    before = log(stack, run_id)
    zombie.thaw()
    # Its claim is refused; or first its connection, which was closed when it was declared dead.
    eventually(
        lambda: "over; the run is completed" in zombie.output or "is given back" in zombie.output,
        what="the frozen worker's commit",
    )

    assert log(stack, run_id) == before
    assert run.result == LABELS
    assert executions(stack, run_id) == LABELS
    assert stack.violations() == []


def test_a_flushed_broker_loses_no_activity(stack: Stack) -> None:
    stack.start_scheduler()
    worker = stack.processes.start_worker(agents.__name__, slots=4)
    run_id = stack.start("meeting", None)
    eventually(lambda: sum(looks(stack, run_id).values()), until=lambda n: n == agents.SIBLINGS,
               deadline_seconds=DONE_SECONDS, what="all siblings begun")  # fmt: skip
    worker.kill_group()
    redis.Redis.from_url(stack.broker.url).flushdb()
    stack.open_gate("meeting")
    stack.processes.start_worker(agents.__name__)

    run = stack.completed(run_id)

    assert executions(stack, run.run_id) == ["0", "1", "2"]
    assert stack.violations() == []


def log(stack: Stack, run_id: str) -> list[tuple[object, ...]]:
    return stack.query(
        "SELECT number, kind, name, made_by, told FROM celeriac.activities WHERE run_id = %s"
        " ORDER BY number",
        run_id,
    )


# features: 004-01
@pytest.mark.parametrize("turn", range(1, 5))
def test_branches_go_on_where_they_were(stack: Stack, turn: int) -> None:
    stack.start_scheduler()
    workers = stack.processes.start_workers(
        2, agents.__name__, test_points=f"turn.after_code@{turn}=kill"
    )

    run = stack.wait(stack.start("branching", None))

    assert run.result == {"left": "a1 a2", "right": "b1 b2", "is_same_time": True}
    assert sorted(executions(stack, run.run_id)) == ["a1", "a2", "b1", "b2"]
    # Two ends may be part of one turn, so that the last turns are not always there.
    assert count_killed(workers) == int(stack.processes.reached(f"turn.after_code@{turn}"))
    assert stack.violations() == []
