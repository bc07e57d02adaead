"""`celeriac schedules`, and the options of `celeriac run` about time."""

import json
from collections.abc import Iterator

import pytest

from examples import nightly_report
from tests.family import Family
from tests.integration.conftest import Cli

DAY = '{"day": "yesterday"}'
NIGHTLY = ["nightly", "report-writer", "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin",
           "--input", DAY]  # fmt: skip


@pytest.fixture
def family(database_url: str, broker_url: str) -> Iterator[Family]:
    family = Family(database_url, broker_url, [nightly_report.writer, nightly_report.analyst])
    yield family
    assert family.violations() == []
    family.close()


def test_the_nightly_report_is_scheduled_triggered_and_written_with_a_child(
    family: Family, cli: Cli
) -> None:
    added = json.loads(cli("schedules", "add", *NIGHTLY, "--as", "alice", "--json").stdout)
    assert (added["user_id"], len(added["next_times"])) == ("alice", 3)

    fire = json.loads(cli("schedules", "trigger", "nightly", "--as", "bob", "--json").stdout)
    family.go_on()

    run = json.loads(cli("show", fire["run_id"], "--json").stdout)
    assert (run["status"], run["result"]) == (
        "completed", "Report: A-7 sold best, 12 of 15."
    )  # fmt: skip
    (child,) = run["children"]
    drawn = cli("show", fire["run_id"]).stdout
    assert f"{child['run_id']} analyst: completed" in drawn
    assert "deadline (UTC)" in drawn
    assert f"call 0.0 of run {fire['run_id']}" in cli("show", child["run_id"]).stdout
    assert "started" in cli("schedules", "show", "nightly").stdout
    assert "report-writer" in cli("schedules", "list").stdout


def test_a_schedule_is_paused_resumed_and_removed(family: Family, cli: Cli) -> None:
    cli("schedules", "add", *NIGHTLY)

    assert json.loads(cli("schedules", "pause", "nightly", "--json").stdout)["paused"]
    assert "paused" in cli("schedules", "list").stdout
    assert not json.loads(cli("schedules", "resume", "nightly", "--json").stdout)["paused"]
    assert "is removed" in cli("schedules", "remove", "nightly").stdout
    assert "no schedules" in cli("schedules", "list").stdout
    gone = cli("schedules", "show", "nightly")
    assert (gone.exit_code, "there is no schedule nightly" in gone.stderr) == (1, True)
    assert family.rows("SELECT FROM celeriac.runs") == []


def test_a_run_is_started_later_and_says_until_when_it_waits(family: Family, cli: Cli) -> None:
    started = cli(
        "run", "report-writer", "--input", DAY, "--in", "2h", "--deadline", "30m", "--json"
    )

    shown = cli("show", json.loads(started.stdout)["run_id"]).stdout
    assert "when it begins" in shown
    assert family.rows("SELECT count(*) FROM celeriac.timers") == [(1,)]
    at = cli("run", "report-writer", "--input", DAY, "--at", "2090-01-31T08:00+01:00", "--json")
    assert at.exit_code == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [("--in", "soon"), ("--in", "2w"), ("--at", "tomorrow"), ("--deadline", "never")],
)
def test_times_that_cannot_be_read_are_wrong_usage(
    family: Family, cli: Cli, option: str, value: str
) -> None:
    refused = cli("run", "report-writer", "--input", DAY, option, value)

    assert refused.exit_code == 2
    assert value in refused.stderr
    assert family.rows("SELECT FROM celeriac.runs") == []


def test_a_waiting_parent_says_which_child_it_waits_for(family: Family, cli: Cli) -> None:
    run_id = family.start("report-writer", {"day": "yesterday"})
    family.go_on(but=["analyst"])

    (child,) = family.children(run_id)
    assert f"for run {child} of agent analyst" in cli("show", run_id).stdout
    family.go_on()
