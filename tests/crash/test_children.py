"""Workers die around the start and the end of child runs: none is lost, none is started twice."""

import pytest

from celeriac.states import RunStatus
from tests.crash import family_agents as agents
from tests.crash.stack import DONE_SECONDS, Stack, count_killed
from tests.waiting import eventually

DELEGATE = 1  # the mother comes to it before any child is there
BEGIN = ["step.before_claim", "step.after_claim", "step.after_load"]
COMMIT = ["step.before_commit", "step.after_commit"]
START = [f"{point}@{DELEGATE}" for point in [*BEGIN, *COMMIT]]
END = [
    f"{point}@{agents.LAST}"
    for point in [
        *BEGIN,
        "think.before_model_call",
        "think.after_model_call",
        *COMMIT,
    ]
]


def history(stack: Stack, run_id: str) -> list[tuple[str, dict[str, object]]]:
    """What happened, without what tells one run and one worker from another."""
    return [
        (event.type, {k: v for k, v in event.data.items() if k not in ("worker_id", "thread_id")})
        for event in stack.client.events(run_id)
    ]


# features: 002-27
def test_the_same_script_and_the_same_death_leave_the_same_history(stack: Stack) -> None:
    stack.start_scheduler()
    histories = []
    for _ in range(2):
        stack.processes.rearm()
        workers = stack.processes.start_workers(
            2, agents.__name__, test_points="step.before_commit@2=kill"
        )
        run = stack.completed(stack.start("child"))
        assert stack.processes.reached("step.before_commit@2")
        histories.append(history(stack, run.run_id))
        for worker in workers:
            worker.kill_group()

    assert histories[0] == histories[1]


@pytest.mark.parametrize("place", [*START, *END])
def test_a_family_survives_a_kill_at_every_point(stack: Stack, place: str) -> None:
    stack.start_scheduler()
    workers = stack.processes.start_workers(2, agents.__name__, test_points=f"{place}=kill")

    run = stack.completed(stack.start("mother"))

    eventually(lambda: count_killed(workers), until=lambda killed: killed == 1,
               deadline_seconds=DONE_SECONDS, what="one death")  # fmt: skip
    assert stack.processes.reached(place)
    assert [(effect.state, effect.attempt) for effect in run.effects] == [
        ("committed", 1)
    ] * agents.CHILDREN
    assert [child.status for child in run.children] == [RunStatus.COMPLETED] * agents.CHILDREN
    for child in run.children:
        assert stack.tally(child.run_id) == ["first", "second"]
    assert stack.events(run.run_id).count("child.started") == agents.CHILDREN
    assert stack.events(run.run_id).count("run.woken") == 1
    assert stack.violations() == []
