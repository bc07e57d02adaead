"""A worker is killed at every named point of a run that changes three files.

Each file is as before its call or as after it, at every moment; the run ends without asking
anybody; and the records say exactly what was done, so that all of it can be taken back.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from celeriac.states import EffectState, RunStatus
from celeriac.workspace import records, rollback
from celeriac.workspace.place import of_run
from celeriac_storage.resolving import NotDone
from tests.crash import workspace_stack
from tests.crash.stack import Stack
from tests.crash.workspace_agents import AFTER, BEFORE
from tests.crash.workspace_stack import AGENTS, go_through

WRITE, EDIT, DELETE = 1, 3, 5
CALLS = {WRITE: "made/new.txt", EDIT: "edited.txt", DELETE: "deleted.txt"}
CHANGING = [
    "step.after_claim",
    "act.before_in_flight",
    "act.before_call",
    "workspace.after_snapshot",
    "workspace.before_rename",
    "workspace.after_rename",
    "act.after_call",
    "act.after_verify",
    "step.before_commit",
    "step.after_commit",
    "step.after_publish",
]
PLACES = [f"{point}@{step}" for step in CALLS for point in CHANGING]
PAIRS = [
    *((f"{point}@{EDIT}", f"act.after_recovery@{EDIT}") for point in CHANGING[2:9]),
    (f"workspace.before_rename@{EDIT}", f"workspace.after_rename@{EDIT}"),
    (f"workspace.before_rename@{WRITE}", f"workspace.after_snapshot@{WRITE}"),
    (f"workspace.after_snapshot@{DELETE}", f"workspace.before_rename@{DELETE}"),
]


shared = workspace_stack.shared
processes = workspace_stack.processes
project = workspace_stack.project


@contextmanager
def watched(project: Path) -> Iterator[None]:
    """All the time, each file is as before its call or as after it."""
    seen: dict[str, set[str | None]] = {name: set() for name in BEFORE | AFTER}
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.001):
            for name, contents in seen.items():
                try:
                    contents.add((project / name).read_bytes().decode())
                except FileNotFoundError:
                    contents.add(None)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield
    finally:
        is_over.set()
        watching.join()
    for name, contents in seen.items():
        assert contents <= {BEFORE.get(name), AFTER.get(name)}


def contents(project: Path) -> dict[str, str]:
    return {
        str(path.relative_to(project)): path.read_bytes().decode()
        for path in project.rglob("*")
        if path.is_file()
    }


def sha256(content: str | None) -> str:
    return "" if content is None else hashlib.sha256(content.encode()).hexdigest()


# features: 004-20, 004-43
@pytest.mark.parametrize(
    "places", [[place] for place in PLACES] + [[*pair] for pair in PAIRS], ids="+".join
)
def test_three_files_are_changed_once_whoever_dies(
    shared: Stack, project: Path, places: list[str]
) -> None:
    with watched(project):
        run = go_through(shared, "editor", project, places)

    assert run.status is RunStatus.COMPLETED, run
    assert {effect.state for effect in run.effects} == {EffectState.COMMITTED}
    assert contents(project) == AFTER
    workspace = of_run("default", run.run_id)
    assert workspace is not None
    done = records.all_records(workspace)
    assert [(record.key, [change.path for change in record.changes]) for record in done] == [
        (effect.key, [path]) for effect, path in zip(run.effects, CALLS.values(), strict=True)
    ]
    for record in done:
        (change,) = record.changes
        assert change.before.sha256 == sha256(BEFORE.get(change.path))
        assert change.after.sha256 == sha256(AFTER.get(change.path))
    rollback.roll_back(workspace, done[0].snapshot)
    assert contents(project) == BEFORE
    assert sorted(path.name for path in project.iterdir()) == sorted(BEFORE)
    assert shared.violations() == []


@pytest.mark.parametrize(
    ("place", "is_asked", "runs"),
    [
        ("act.before_call@1", False, 1),
        ("workspace.before_command@1", True, 0),
        ("workspace.after_command@1", True, 1),
        ("act.after_call@1", False, 1),
    ],
)
def test_a_command_that_may_have_run_is_put_before_a_person(
    shared: Stack, project: Path, place: str, is_asked: bool, runs: int
) -> None:
    run = go_through(shared, "runner", project, [place])

    assert contents(project).get("runs", "") == "run\n" * runs
    assert run.status is (RunStatus.NEEDS_ATTENTION if is_asked else RunStatus.COMPLETED)
    if is_asked:
        assert run.effects[0].state is EffectState.UNKNOWN
        shared.client.resolve(run.run_id, run.effects[0].call_id, NotDone())
        shared.completed(run.run_id)
        assert contents(project)["runs"] == "run\n" * (runs + 1)
    assert shared.violations() == []


@pytest.mark.parametrize(
    "place", ["act.before_call@2", "workspace.rollback_planned", "workspace.rollback_applied"]
)
def test_a_rollback_of_the_run_puts_all_files_back_whoever_dies(
    shared: Stack, project: Path, place: str
) -> None:
    run = go_through(shared, "editor", project, [])
    (unarmed,) = shared.processes.started[1:]
    unarmed.kill_group()
    shared.processes.start_workers(2, AGENTS, test_points=f"{place}=kill")  # one of them dies there
    back = shared.completed(shared.client.rollback(run.run_id).run_id)

    assert shared.processes.reached(place)
    assert {effect.state for effect in back.effects} == {EffectState.COMMITTED}
    assert contents(project) == BEFORE
    assert sorted(path.name for path in project.iterdir()) == sorted(BEFORE)
    assert {effect.state for effect in shared.run(run.run_id).effects} == {EffectState.ROLLED_BACK}
    assert shared.violations() == []


@pytest.mark.parametrize("place", ["workspace.before_command@1", "workspace.after_command@1"])
def test_the_tests_are_run_again(shared: Stack, project: Path, place: str) -> None:
    run = go_through(shared, "tester", project, [place])

    assert run.status is RunStatus.COMPLETED
    assert run.effects[0].attempt == 2
    assert shared.violations() == []
