"""A worker is killed around each judgement of a contract, and a process while it submits a receipt.

Whoever takes over judges by the same rows: the model is told once, and the run completes exactly if
its contract is met.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from celeriac.client import Receipt
from celeriac.states import EffectState, RunStatus
from celeriac_storage import deeds
from tests.attesting_host import Host
from tests.crash import workspace_stack
from tests.crash.stack import Stack, count_killed
from tests.crash.workspace_stack import AGENTS, go_through
from tests.waiting import eventually

shared = workspace_stack.shared
processes = workspace_stack.processes
project = workspace_stack.project

WRITE, TOO_EARLY, TESTS, END = 1, 2, 4, 5
JUDGED = [
    "think.after_model_call", "think.after_judgement", "step.before_commit", "step.after_commit",
    "step.after_publish",
]  # fmt: skip
CALLED = [
    "act.before_call", "act.after_call", "act.after_verify", "step.before_commit",
    "step.after_commit",
]  # fmt: skip
PLACES: Sequence[Sequence[str]] = [
    *([f"{point}@{TOO_EARLY}"] for point in JUDGED),
    *([f"{point}@{END}"] for point in JUDGED[:-1]),
    *([f"{point}@{step}"] for step in (WRITE, TESTS) for point in CALLED),
    [f"workspace.after_rename@{WRITE}"],
    [f"workspace.after_command@{TESTS}"],
    [f"think.after_judgement@{TOO_EARLY}", f"think.after_judgement@{END}"],
    [f"act.after_call@{WRITE}", f"act.after_recovery@{WRITE}"],
    [f"act.after_call@{TESTS}", f"think.after_judgement@{END}"],
]


# features: 004-21, 004-34, 004-36
@pytest.mark.parametrize("places", PLACES, ids="+".join)
def test_the_judgement_is_the_same_whoever_dies(
    shared: Stack, project: Path, places: Sequence[str]
) -> None:
    run = go_through(shared, "careful", project, places)

    assert (run.status, run.result) == (RunStatus.COMPLETED, "done now"), run
    events = shared.events(run.run_id)
    assert (events.count("contract.refused"), events.count("contract.met")) == (1, 1)
    assert run.contract is not None
    assert (run.contract.is_met, run.contract.corrections) == (True, 1)
    with shared.database.connect() as connection:
        written, tested = deeds.load(connection, run.run_id).deeds
    (changes,) = written.changes
    assert list(changes.paths) == ["made/new.txt"]
    assert changes.paths["made/new.txt"][0] is None
    assert tested.command is not None
    assert tested.command.outcome == "passed"
    assert shared.violations() == []


@pytest.fixture
def host(shared: Stack, tmp_path: Path) -> Host:
    """The process that executes the calls of a run which waits for them."""
    shared.processes.start_workers(1, AGENTS)
    run_id = shared.start("remote")
    shared.wait_until(run_id, step=1, status=RunStatus.PAUSED)
    return Host(shared.client, run_id, tmp_path)


# features: 004-23, 004-27
@pytest.mark.parametrize(
    ("point", "is_recorded"),
    [("submit.recorded", False), ("submit.before_commit", False), ("submit.after_commit", True)],
)
def test_a_receipt_is_taken_whole_or_not_at_all(
    shared: Stack, host: Host, point: str, *, is_recorded: bool
) -> None:
    receipt = host.receipt(host.write("a.txt", "new"))
    shared.client.submit(host.run_id, {"0.0": 7})
    submit = ["submit", host.run_id, "0.1", "--receipt", json.dumps(receipt)]

    submitter = shared.processes.start(submit, test_points=f"{point}=kill", settings={})

    eventually(lambda: count_killed([submitter]), until=lambda n: n == 1, what="its death")
    assert shared.processes.reached(point)
    state = EffectState.COMMITTED if is_recorded else EffectState.IN_FLIGHT
    assert shared.run(host.run_id).effects[1].state is state
    if not is_recorded:
        assert shared.run(host.run_id).status is RunStatus.PAUSED
        shared.client.submit(host.run_id, {"0.0": 7, "0.1": Receipt(receipt)})
    run = shared.completed(host.run_id)
    assert run.contract is not None
    assert run.contract.is_met
    assert shared.violations() == []
