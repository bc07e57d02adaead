"""`celeriac plan`: what is typed, and what is seen."""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from celeriac.cli.main import app
from celeriac.plan import Plan, PlanStep
from celeriac.plan.report import PlanReport
from celeriac.plan.standing import Node
from tests.family import Family
from tests.plan_desk import LAYERS, broken, calls, runner, writer

Cli = Callable[..., Result]


@pytest.fixture
def family(database_url: str, broker_url: str) -> Iterator[Family]:
    calls.clear()
    broken.clear()
    family = Family(database_url, broker_url, [runner, writer])
    yield family
    family.close()


@pytest.fixture
def cli(database_url: str) -> Cli:
    return lambda *arguments, **more: CliRunner().invoke(
        app, ["--database-url", database_url, "plan", *arguments], **more
    )


def file_of(folder: Path, plan: Plan) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan.to_json()))
    return str(path)


def test_a_plan_is_run_shown_and_retried(family: Family, cli: Cli, tmp_path: Path) -> None:
    broken.add("a is there")
    file = file_of(tmp_path, Plan(LAYERS, goal="Write a letter"))
    run_id = json.loads(cli("run", file, "--json").stdout)["run_id"]
    assert "queued" in cli("run", "-", input=Path(file).read_text()).stdout
    family.go_on()

    shown = cli("show", run_id).stdout.splitlines()

    assert shown[0] == f"Plan of run {run_id} (failed), version 1, per_step"
    assert shown[1] == "Write a letter"
    (c,) = [line for line in shown if " ✗ " in line]
    assert c.split()[:6] == ["2", "✗", "c", "tool", "send", "failed"]
    assert "a, b" in c
    assert "a is there is broken" in c
    (d,) = [line for line in shown if " skipped " in line]
    assert d.split()[:6] == ["3", "-", "d", "agent", "writer", "skipped"]
    broken.clear()

    retried = json.loads(cli("retry", run_id, "--json").stdout)["run_id"]
    family.go_on()

    report = json.loads(cli("show", retried, "--json").stdout)
    assert list(report) == [field.name for field in fields(PlanReport)]
    assert list(report["steps"][0]) == [field.name for field in fields(Node)]
    assert [step["state"] for step in report["steps"]] == ["completed"] * 4
    assert [step["is_kept"] for step in report["steps"]] == [True, True, False, False]
    assert "completed before" in cli("show", retried).stdout
    assert f"goes on from run {run_id}" in cli("show", retried).stdout
    assert f"run {retried} does what is left" in cli("show", run_id).stdout


def test_what_cannot_be_used_is_said(family: Family, cli: Cli, tmp_path: Path) -> None:
    def refused(plan: object, *, exit_code: int = 1) -> str:
        told = cli("run", "-", input=plan if isinstance(plan, str) else json.dumps(plan))
        assert told.exit_code == exit_code
        return told.stderr

    cycle = {"steps": [{"id": "a", "tool": "look", "needs": ["a"]}]}
    assert "these steps wait for one another: a → a" in refused(cycle)
    unknown = Plan([PlanStep("a", tool="play")]).to_json()
    assert "step a: there is no tool play; known are book, fill, look," in refused(unknown)
    cut = refused("{", exit_code=2)
    assert "standard input is no plan, which is written as JSON: this is no JSON: " in cut
    assert "its own quotes" not in cut  # those that a text on the command line needs
    assert "standard input is no plan: step: unknown; expected are steps, goal," in refused(
        {"step": []}
    )
    missing = cli("run", str(tmp_path / "nothing.json"))
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (2, True)
    nobody = cli("run", file_of(tmp_path, Plan(LAYERS)), "--runner", "nobody")
    assert (nobody.exit_code, "no worker has ever had an agent 'nobody'" in nobody.stderr) == (
        1,
        True,
    )
    run_id = family.start("writer", "x")
    assert f"run {run_id} executes no plan" in cli("show", run_id).stderr
