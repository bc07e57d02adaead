"""Workers die in and around the steps of plans: what was completed is not done again."""

# features: 004-16, 004-17, 004-57
from typing import get_args

import pytest

from celeriac.codec import JsonValue
from celeriac.plan import CheckpointInterval, Plan, PlanStep, result_of
from celeriac.reports import Run
from celeriac.states import RunStatus
from tests.crash import plan_agents as agents
from tests.crash.stack import DONE_SECONDS, Stack, count_killed
from tests.waiting import eventually

INTERVALS: list[CheckpointInterval] = [*get_args(CheckpointInterval)]
LAYERS = [["a", "b"], ["c", "d"], ["e"]]
STEPS = [step for layer in LAYERS for step in layer]
WRITING = ["b", "d", "e"]  # the others only read
# Each step's own run comes to the others at its step 0 as well, and which is first is not known.
PLACES = [
    "turn.after_code@0",
    "turn.before_commit@0",
    *(
        f"{point}@{turn}"
        for turn in range(1, len(LAYERS) + 1)
        for point in ("step.after_load", "turn.after_code", "turn.before_commit",
                      "step.after_commit")
    ),
]  # fmt: skip


def plan_of(interval: CheckpointInterval, dying: str | None = None) -> Plan:
    """Three layers, each with a step that writes; the call of one kills its worker, once."""
    steps: list[PlanStep] = []
    for above, layer in zip([[], *LAYERS], LAYERS, strict=False):
        for step in layer:
            tool = "tally_and_die" if step in WRITING else "look_and_die"
            arguments: JsonValue = {"label": step, "dies": step == dying}
            steps.append(PlanStep(step, tool=tool, arguments=arguments, needs=above))
    return Plan(steps, checkpoint_interval=interval)


def begun(stack: Stack, run_id: str) -> dict[str, int]:
    """How often a call of each step has begun, whatever came of it."""
    rows = stack.query(
        "SELECT label, count(*) FROM crash.calls JOIN celeriac.activities ON made_by = calls.run_id"
        " WHERE activities.run_id = %s GROUP BY label",
        run_id,
    )
    return dict(rows)


def written(stack: Stack, run_id: str) -> list[str]:
    """The steps that have written their row, in order."""
    rows = stack.query(
        "SELECT tally.label FROM crash.tally"
        " JOIN celeriac.activities ON made_by = tally.run_id"
        " WHERE activities.run_id = %s ORDER BY tally.ctid",
        run_id,
    )
    return [label for (label,) in rows]


def completed(stack: Stack, run_id: str) -> Run:
    run = stack.completed(run_id)
    assert {node.state.value for node in stack.client.plan(run_id).steps} == {"completed"}
    return run


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("dying", STEPS)
def test_a_kill_in_each_step_repeats_no_other_one(
    stack: Stack, dying: str, interval: CheckpointInterval
) -> None:
    stack.start_scheduler()
    # One call at a time in each: a sibling in the same process would die with it.
    workers = stack.processes.start_workers(2, agents.__name__, slots=1)

    run = completed(stack, stack.client.start_plan(plan_of(interval, dying)).run_id)

    assert count_killed(workers) == 1
    assert run.result == {"e": "e"}
    assert begun(stack, run.run_id) == {step: 2 if step == dying else 1 for step in STEPS}
    assert written(stack, run.run_id) == WRITING
    assert stack.violations() == []


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("place", PLACES)
def test_a_kill_in_each_turn_repeats_no_step(
    stack: Stack, place: str, interval: CheckpointInterval
) -> None:
    stack.start_scheduler()
    workers = stack.processes.start_workers(2, agents.__name__, test_points=f"{place}=kill")

    run = completed(stack, stack.client.start_plan(plan_of(interval)).run_id)

    eventually(lambda: count_killed(workers), until=lambda killed: killed == 1,
               deadline_seconds=DONE_SECONDS, what="one death")  # fmt: skip
    assert run.result == {"e": "e"}
    assert written(stack, run.run_id) == WRITING
    assert stack.violations() == []


@pytest.mark.parametrize("interval", INTERVALS)
def test_three_siblings_overlap_in_time_on_two_workers(
    stack: Stack, interval: CheckpointInterval
) -> None:
    stack.start_scheduler()
    stack.processes.start_workers(2, agents.__name__, slots=2)
    siblings = [PlanStep(step, tool="meet", arguments={"label": step}) for step in "abc"]
    last = PlanStep("d", tool="look_and_die", needs=["a", "b", "c"],
                    arguments={"label": result_of("c"), "dies": False})  # fmt: skip
    plan = Plan([*siblings, last], checkpoint_interval=interval)

    run_id = stack.client.start_plan(plan).run_id
    eventually(lambda: len(begun(stack, run_id)), until=lambda number: number == 3,
               deadline_seconds=DONE_SECONDS, what="all siblings begun")  # fmt: skip
    stack.open_gate("meeting")
    run = completed(stack, run_id)

    ((workers, latest_begin, first_end),) = stack.query(
        "SELECT count(DISTINCT step.worker_id), max(step.started_at), min(step.committed_at)"
        " FROM celeriac.activities JOIN celeriac.checkpoints AS step ON step.run_id = made_by"
        " WHERE activities.run_id = %s AND name = 'meet'",
        run_id,
    )
    assert latest_begin < first_end
    assert workers == 2
    assert run.result == {"d": "c"}
    assert stack.violations() == []


# features: 004-29
@pytest.mark.parametrize("interval", INTERVALS)
def test_an_exclusive_step_overlaps_no_other_on_any_worker(
    stack: Stack, interval: CheckpointInterval
) -> None:
    stack.start_scheduler()
    stack.processes.start_workers(2, agents.__name__, slots=2)
    tools = {"a": "linger", "b": "linger_alone", "c": "linger", "d": "linger_alone"}
    steps = [PlanStep(id_, tool=tool, arguments={"label": id_}) for id_, tool in tools.items()]

    run = completed(
        stack, stack.client.start_plan(Plan(steps, checkpoint_interval=interval)).run_id
    )

    overlaps = stack.query(
        """
        WITH calls AS (
            SELECT label, name, step.started_at, committed_at FROM celeriac.activities
            JOIN celeriac.checkpoints AS step ON step.run_id = made_by
            WHERE activities.run_id = %s)
        SELECT one.label, other.label FROM calls AS one JOIN calls AS other
            ON one.label <> other.label AND one.name = 'linger_alone'
            AND one.started_at < other.committed_at AND other.started_at < one.committed_at
        """,
        run.run_id,
    )
    assert overlaps == []
    assert begun(stack, run.run_id) == dict.fromkeys(tools, 1)
    assert stack.violations() == []


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("dying", [None, "d"])
def test_a_failed_plan_goes_on_after_a_fix_and_a_kill(
    stack: Stack, dying: str | None, interval: CheckpointInterval
) -> None:
    stack.start_scheduler()
    workers = stack.processes.start_workers(2, agents.__name__, slots=1)
    steps = [
        PlanStep("weak", tool="fragile", arguments={"label": "weak"}, needs=["b"])
        if step.id == "c"
        else step
        for step in plan_of(interval, dying).steps
    ]
    *others, last = steps
    plan = Plan([*others, PlanStep("e", tool=last.tool, arguments=last.arguments,
                                   needs=["weak", "d"])], checkpoint_interval=interval)  # fmt: skip
    first = stack.wait(stack.client.start_plan(plan).run_id)
    assert first.status is RunStatus.FAILED
    assert written(stack, first.run_id) == ["b", "d"]
    stack.open_gate("mended")

    second = completed(stack, stack.client.retry_plan(first.run_id).run_id)

    assert count_killed(workers) == (dying is not None)
    assert second.result == {"e": "e"}
    assert written(stack, first.run_id) == ["b", "d"]
    assert written(stack, second.run_id) == ["e"]
    assert begun(stack, second.run_id) == {"weak": 1, "e": 1}
    assert stack.violations() == []
