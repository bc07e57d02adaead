"""What an operator types about budgets, and what a run is shown to have cost."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from decimal import Decimal

import pytest
from typer.testing import CliRunner, Result

from celeriac.cli.main import app
from celeriac.reports import Budget
from celeriac_storage.database import Database
from tests.records import think
from tests.steps_by_hand import Hand

Cli = Callable[..., Result]


@pytest.fixture
def cli(database_url: str) -> Cli:
    return lambda *arguments: CliRunner().invoke(app, ["--database-url", database_url, *arguments])


def test_a_budget_is_set_topped_up_and_listed(cli: Cli) -> None:
    made = cli("budgets", "set", "user", "alice", "usd", "--hard", "20", "--soft", "15.50",
               "--on-exceeded", "fail", "--as", "boss", "--json")  # fmt: skip
    for _ in range(2):
        more = cli("budgets", "top-up", "user", "alice", "usd", "0.1", "--key", "k", "--json")

    report = json.loads(made.stdout)
    assert list(report) == [field.name for field in fields(Budget)]
    assert (report["hard_limit"], report["soft_limit"], report["on_exceeded"]) == (
        "20", "15.5", "fail",
    )  # fmt: skip
    assert json.loads(more.stdout)["hard_limit"] == "20.1"
    (listed,) = cli(
        "budgets", "list", "--scope", "user", "--id", "alice", "--json"
    ).stdout.splitlines()
    assert json.loads(listed)["hard_limit"] == "20.1"
    assert cli("budgets", "list", "--scope", "run").stdout.startswith("no budgets")
    assert "20.1" in cli("budgets", "list").stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code", "why"),
    [
        (["set", "team", "a", "usd"], 2, "'team' is no scope"),
        (["set", "user", "a", "usd", "--hard", "much"], 2, "--hard is 'much'"),
        (["set", "user", "a", "money"], 2, "'money' is not one of"),
        (["set", "user", "a b", "usd"], 1, "cannot be a tenant, user, thread or run id"),
        (["set", "user", "a", "usd", "--hard", "1", "--soft", "2"], 1, "above the hard limit"),
        (["top-up", "user", "a", "usd", "1"], 1, "has no budget of usd; set one with"),
        (["top-up", "user", "a", "usd", "-1"], 2, ""),
        (["set", "run", "r-none", "usd"], 1, "there is no run r-none"),
    ],
)
def test_what_cannot_be_is_said(cli: Cli, arguments: list[str], exit_code: int, why: str) -> None:
    refused = cli("budgets", *arguments)

    assert refused.exit_code == exit_code
    assert why in refused.stderr


def test_show_says_what_a_run_took_and_cost(cli: Cli, database: Database) -> None:
    hand = Hand(database)
    run_id = hand.start()
    claim = hand.claim(run_id)
    record = think(claim, input_tokens=1200, output_tokens=30)
    assert record.model_call is not None
    call = replace(record.model_call, cost=Decimal("0.0123"))
    hand.commit(claim, replace(record, model_call=call))

    shown = json.loads(cli("show", run_id, "--json").stdout)

    assert shown["use"] == {
        "input_tokens": 1200, "output_tokens": 30, "usd": "0.0123", "unpriced_calls": 0,
    }  # fmt: skip
    assert "1,200 tokens in, 30 out; $0.0123" in cli("show", run_id).stdout
