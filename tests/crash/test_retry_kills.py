"""Workers die in the first step of a retry: an agent's plans calls that its origin was still to
make, a workflow's asks for what its origin has failed by."""

import signal

import pytest

from celeriac.client import Client
from celeriac.ids import RunId
from celeriac.states import RunStatus
from celeriac_storage import deadlines
from tests.crash import clone_agents, workflow_agents
from tests.crash.stack import DONE_SECONDS, Stack, count_killed
from tests.waiting import eventually

AGENTS = clone_agents.__name__
POINTS = ["step.after_claim", "step.after_load", "step.before_commit", "step.after_commit",
          "step.before_publish", "step.after_publish"]  # fmt: skip
TURN_POINTS = ["step.before_claim", "step.after_claim", "step.after_load", "turn.after_code",
               "step.before_commit", "turn.before_commit", "step.after_commit"]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_retry_survives_a_kill_in_its_first_step(stack: Stack, point: str) -> None:
    failed = failed_among_its_calls(stack)
    stack.start_scheduler()
    stack.processes.start_workers(2, AGENTS, test_points=f"{point}@0=kill")

    retried = stack.client.retry(failed).run_id
    run = stack.completed(retried)

    assert stack.processes.reached(f"{point}@0")
    assert stack.client.retry(failed).run_id == retried
    assert [(effect.call_id, effect.state) for effect in run.effects] == [
        ("0.0", "committed"), ("0.1", "committed"),
    ]  # fmt: skip
    assert stack.tally(retried) == ["ink", "pens"]
    assert stack.tally(failed) == []
    assert stack.events(retried).count("fork.planned") == 1
    assert stack.violations() == []


def failed_among_its_calls(stack: Stack) -> RunId:
    """A run that has asked for two calls, and then had no time left to make them."""
    worker = stack.processes.start_worker(AGENTS, test_points="step.before_publish@0=kill")
    with Client(stack.database.url, stack.broker.url) as client:
        run_id = client.start("pair", "go").run_id
    worker.wait()
    stack.processes.rearm()
    with stack.database.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE celeriac.runs SET deadline_at = clock_timestamp() WHERE run_id = %s", (run_id,)
        )
    with stack.database.begin() as connection:
        assert deadlines.end(connection, run_id)
    return run_id


@pytest.mark.parametrize("point", TURN_POINTS)
def test_a_retried_workflow_survives_a_kill_in_its_first_turn(stack: Stack, point: str) -> None:
    stack.start_scheduler()
    worker = stack.processes.start_worker(workflow_agents.__name__)
    failed = stack.wait(stack.start("mending", None))
    assert failed.status is RunStatus.FAILED
    worker.send(signal.SIGTERM)
    worker.wait()
    assert sorted(tallied(stack, failed.run_id)) == ["before", "whole0", "whole1"]
    stack.open_gate("mended")

    workers = stack.processes.start_workers(
        2, workflow_agents.__name__, test_points=f"{point}@0=kill"
    )
    retry = stack.client.retry(RunId(failed.run_id)).run_id
    run = stack.completed(retry)

    eventually(lambda: count_killed(workers), until=lambda killed: killed == 1,
               deadline_seconds=DONE_SECONDS, what="one death")  # fmt: skip
    assert stack.processes.reached(f"{point}@0")
    assert run.result == ["whole0", "whole1", "after"]
    assert tallied(stack, retry) == ["after"]
    assert sorted(tallied(stack, failed.run_id)) == ["before", "whole0", "whole1"]
    assert stack.violations() == []


def tallied(stack: Stack, workflow: str) -> list[str]:
    """What the activities of this run have written in their own transactions."""
    rows = stack.query(
        "SELECT label FROM crash.tally JOIN celeriac.runs USING (run_id) WHERE parent_run_id = %s",
        workflow,
    )
    return [label for (label,) in rows]
