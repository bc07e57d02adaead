"""The example: a small project is repaired, and not called repaired before its tests pass."""

# features: 004-36, 004-43, 004-44
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac import Client
from celeriac.reports import Run
from celeriac.settings import settings
from celeriac.states import EffectState, RunStatus
from celeriac.workspace.place import prepare
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from examples import coder as example
from tests.worker_in_process import Worker
from tests.workspace.test_workspaces_cli import celeriac


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example's project, where runs may work."""
    prepare(tmp_path / "workspaces")
    monkeypatch.setenv("CELERIAC_WORKSPACES", str(tmp_path / "workspaces"))
    monkeypatch.setenv("CELERIAC_WORKSPACE_ROOTS", str(tmp_path / "projects"))
    settings.cache_clear()
    example.prepare(tmp_path / "projects" / "till")
    yield tmp_path / "projects" / "till"
    settings.cache_clear()


def git(project: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(project), *words], check=True, capture_output=True, text=True
    ).stdout


def do_tests_pass(project: Path) -> bool:
    return (
        subprocess.run(example.TESTS, cwd=project, capture_output=True, check=False).returncode == 0
    )


def repaired(database: Database, broker_url: str, project: Path) -> Run:
    client = Client(database.url)
    worker = Worker(database.url, broker_url, [example.coder])
    worker.process.start()
    try:
        task = {"folder": str(project), "task": "Make the tests pass."}
        run_id = client.start(example.coder, task).run_id
        while worker.row(run_id).status == RunStatus.QUEUED:
            worker.step(run_id)
        return client.get(run_id)
    finally:
        worker.process.stop()
        client.close()


def test_the_coder_is_not_done_before_the_tests_agree_and_can_be_taken_back(
    database: Database, broker_url: str, project: Path
) -> None:
    head = git(project, "rev-parse", "HEAD")
    assert not do_tests_pass(project)

    run = repaired(database, broker_url, project)

    assert run.status is RunStatus.COMPLETED, run.error
    assert run.contract is not None
    assert (run.contract.is_met, run.contract.corrections) == (True, 1)
    assert [effect.tool for effect in run.effects] == [
        "list_files", "read_file", "run_tests", "edit_file", "run_tests",
    ]  # fmt: skip
    assert {effect.state for effect in run.effects} == {EffectState.COMMITTED}
    assert do_tests_pass(project)
    assert git(project, "status", "--porcelain") == " M till.py\n"

    shown = celeriac("workspaces", "show", run.run_id, "--json").splitlines()
    (before,) = (each for each in map(json.loads, shown) if each["tool"] == "edit_file")
    celeriac("workspaces", "rollback", run.run_id, "--to", before["snapshot"])

    assert git(project, "status", "--porcelain") == ""
    assert git(project, "rev-parse", "HEAD") == head
    assert not do_tests_pass(project)
    assert audit(database) == []
