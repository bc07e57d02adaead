"""What a reviewer types: the proposals, a decision about one of them, and who may decide."""

# features: 000-28, 004-47, 004-50, 004-59
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from celeriac import Approval, Client
from celeriac.cli.main import app
from celeriac.cli.words import waiting_for
from celeriac.errors import InvalidInput
from celeriac.reports import Approval as Proposal
from celeriac_storage.database import Database
from tests.review_desk import REFUND, Desk, Ledger, refund_tool

CONTRACT = [
    "approval_id", "run_id", "call_id", "tool", "arguments", "arguments_hash", "version", "intent",
    "data_lineage", "permissions_touched", "blast_radius", "rollback_plan", "idempotency_key",
    "status", "expires_at",
]  # fmt: skip
QUESTION = "Did you call the customer?"


@pytest.fixture
def desk(database: Database, broker_url: str) -> Iterator[Desk]:
    ledger = Ledger()
    tools = [refund_tool(ledger, Approval(immutable=["order_id"]))]
    desk = Desk(database, broker_url, ledger, tools, [("refund", REFUND)])
    yield desk
    desk.close()


@pytest.fixture
def cli(database_url: str) -> Callable[..., Result]:
    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(app, ["--database-url", database_url, *arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


Cli = Callable[..., Result]


def lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def error(result: Result, code: int = 1) -> str:
    assert (result.exit_code, result.stdout) == (code, "")
    line = result.stderr.splitlines()[-1]  # above it the proposal that was to be decided
    assert line.startswith("Error: ")
    return line


def test_the_proposals_are_listed_with_the_fields_of_the_contract(cli: Cli, desk: Desk) -> None:
    run_id = desk.worker.start("desk")
    desk.go_on(run_id)

    (listed,) = lines(cli("approvals", "--json"))

    assert list(listed)[: len(CONTRACT)] == CONTRACT
    assert list(listed) == [field.name for field in fields(Proposal)]
    assert (listed["run_id"], listed["status"], listed["version"]) == (run_id, "pending", 1)
    (shown,) = lines(cli("show", run_id, "--json"))
    assert shown["approvals"] == [listed]


def test_a_person_reads_all_that_is_to_be_decided(cli: Cli, desk: Desk) -> None:
    _, (proposal,) = desk.propose()

    shown = cli("approvals").stdout

    for fact in (proposal.approval_id, proposal.arguments_hash, "80.00", proposal.blast_radius,
                 proposal.intent, "out_of_band", "any other person", "never"):  # fmt: skip
        assert fact in shown


@pytest.mark.parametrize(
    "decision",
    [["approve"], ["edit", "--arguments", '{"order_id": "O-1"}'], ["reject", "--reason", "no"]],
)
@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_whoever_decides_is_shown_what(
    cli: Cli, desk: Desk, decision: list[str], json_too: list[str]
) -> None:
    _, (proposal,) = desk.propose()

    told = cli(decision[0], proposal.approval_id, *decision[1:], "--as", "alice", *json_too)

    for fact in (proposal.approval_id, proposal.arguments_hash, "80.00", proposal.blast_radius):
        assert fact in told.stderr


def test_who_may_not_decide_is_told_how_another_one_does(cli: Cli, desk: Desk) -> None:
    _, (proposal,) = desk.propose()

    told = error(cli("approve", proposal.approval_id, "--as", proposal.requested_by))

    assert f"cannot be decided by {proposal.requested_by}" in told
    assert "--as USER" in told
    assert [each.status for each in desk.client.approvals()] == ["pending"]


def test_show_records_that_a_proposal_was_seen_only_for_a_person_who_is_named(
    cli: Cli, desk: Desk
) -> None:
    run_id = desk.worker.start("desk")
    desk.go_on(run_id)

    cli("show", run_id, "--json")
    cli("show", run_id)
    assert "approval.surfaced" not in desk.events(run_id)

    cli("show", run_id, "--as", "alice")
    assert "approval.surfaced" in desk.events(run_id)


def test_a_status_that_there_is_not_is_refused_with_those_that_there_are(
    cli: Cli, desk: Desk
) -> None:
    assert "'superseded'" in error(cli("approvals", "--status", "pendign"), 2)
    with pytest.raises(InvalidInput, match="superseded"):
        desk.client.approvals(status="pendign")


def test_approve_decides_about_what_the_id_names(cli: Cli, desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()

    (decided,) = lines(cli("approve", proposal.approval_id, "--as", "alice", "--json"))

    assert decided == {
        "approval_id": proposal.approval_id,
        "run_id": run_id,
        "call_id": "0.0",
        "version": 1,
        "status": "approved",
        "approvals": 1,
        "quorum": 1,
    }
    assert desk.go_on(run_id).status == "completed"
    assert lines(cli("approvals", "--json")) == []
    (all_,) = lines(cli("approvals", "--status", "all", "--json"))
    assert all_["status"] == "approved"
    assert "is approved already" in error(cli("approve", proposal.approval_id, "--as", "bob"))


def test_approve_with_another_hash_decides_nothing(cli: Cli, desk: Desk) -> None:
    _, (proposal,) = desk.propose()

    refused = cli("approve", proposal.approval_id, "--hash", "0" * 64, "--as", "alice")

    assert "this is not what you were shown" in error(refused)
    assert desk.client.approval(proposal.approval_id).status == "pending"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"order_id": "O-1", "amount": NaN}', "NaN is not a JSON number"),
        ('{"order_id": "O-1", "amount": "-1"}', "amount: "),
        ('{"order_id": "O-1"}', "amount: required, but missing"),
        ('{"order_id": "O-2", "amount": "1"}', "may not be changed"),
    ],
)
def test_an_edit_that_cannot_be_used_is_told_and_changes_nothing(
    cli: Cli, desk: Desk, arguments: str, problem: str
) -> None:
    _, (proposal,) = desk.propose()

    refused = cli("edit", proposal.approval_id, "--arguments", arguments, "--as", "alice")

    assert problem in error(refused)
    assert desk.client.approval(proposal.approval_id).status == "pending"


def test_edit_takes_arguments_from_standard_input(cli: Cli, desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()

    edited = '{"order_id": "O-1", "amount": "12.50"}'
    result = cli("edit", proposal.approval_id, "--arguments", "-", "--as", "alice", stdin=edited)

    assert "is approved" in result.stdout
    desk.go_on(run_id)
    assert desk.ledger.amounts() == ["12.50"]


def test_reject_tells_the_reason_to_the_model(cli: Cli, desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()

    result = cli("reject", proposal.approval_id, "--reason", "fraud", "--as", "alice")

    assert "is rejected" in result.stdout
    desk.go_on(run_id)
    assert "fraud" in desk.shown
    assert cli("reject", proposal.approval_id).exit_code == 2, "a reason is part of the usage"


def test_answers_are_given_in_the_order_of_the_questions(
    cli: Cli, database: Database, broker_url: str
) -> None:
    ledger = Ledger()
    tools = [refund_tool(ledger, Approval(checklist=[QUESTION]))]
    desk = Desk(database, broker_url, ledger, tools, [("refund", REFUND)])
    _, (proposal,) = desk.propose()

    assert QUESTION in error(cli("approve", proposal.approval_id, "--as", "alice"))
    too_many = cli("approve", proposal.approval_id, "--answer", "a", "--answer", "b")
    assert "has 1 questions" in error(too_many, 2)
    cli("approve", proposal.approval_id, "--answer", "yes", "--as", "alice")

    (decision,) = desk.rows("SELECT answers FROM celeriac.approval_decisions")
    assert decision.answers == {QUESTION: "yes"}
    desk.close()


def test_principals_says_and_lists_who_may_decide_what(cli: Cli, desk: Desk) -> None:
    limits = '{"refund": [["amount", "<=", "50"]]}'

    (alice,) = lines(
        cli("principals", "alice", "--role", "b", "--role", "a", "--permissions", limits, "--json")
    )

    assert alice == {
        "user_id": "alice",
        "roles": ["a", "b"],
        "permissions": json.loads(limits),
        "version": 1,
        "disabled": False,
    }
    (changed,) = lines(cli("principals", "alice", "--disable", "--as", "root", "--json"))
    assert (changed["roles"], changed["version"], changed["disabled"]) == ([], 2, True)
    assert lines(cli("principals", "--json")) == [changed]
    assert "alice" in cli("principals").stdout
    _, (proposal,) = desk.propose()
    assert "alice is disabled" in error(cli("approve", proposal.approval_id, "--as", "alice"))
    assert desk.trail("alice") == [
        ("local", "principal.set", "allowed"),
        ("root", "principal.set", "allowed"),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--role", "a"),
        ("alice", "--permissions", "{"),
        ("alice", "--permissions", '{"refund": 5}'),
        ("alice", "--permissions", '{"refund": [["amount", "<", 5.5]]}'),
    ],
)
def test_rights_that_make_no_sense_are_wrong_usage(cli: Cli, arguments: Sequence[str]) -> None:
    assert error(cli("principals", *arguments), 2)


def test_a_waiting_run_says_what_to_type(desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()

    with Client(desk.database.url) as client:
        words = waiting_for(client.get(run_id), client.waits_for(run_id))

    assert words is not None
    assert f"celeriac approve {proposal.approval_id} --as USER" in words
