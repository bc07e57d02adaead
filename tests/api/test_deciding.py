"""Decisions over HTTP: only about what is pending, and only with every question answered."""

# features: 004-52, 004-59
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from celeriac import Approval, tool
from celeriac_storage.database import Database
from tests.api.server import Api, problem
from tests.review_desk import REFUND, Desk, Ledger, refund_tool

QUESTIONS = ["Did you call the customer?", "Is the order paid?"]
MakeDesk = Callable[..., Desk]


@pytest.fixture
def desks(database: Database, broker_url: str) -> Iterator[MakeDesk]:
    with ExitStack() as stack:

        def make(approval: Approval) -> Desk:
            ledger = Ledger()
            tools = [refund_tool(ledger, approval)]
            desk = Desk(database, broker_url, ledger, tools, [("refund", REFUND)])
            stack.callback(desk.close)
            return desk

        yield make


def decisions(arguments_hash: str) -> list[dict[str, Any]]:
    body = {"arguments_hash": arguments_hash}
    return [
        {**body, "decision": "approve"},
        {**body, "decision": "edit", "arguments": {**REFUND, "amount": "1.00"}},
        {**body, "decision": "reject", "reason": "late"},
    ]


def told(person: httpx2.Client, approval_id: str, body: dict[str, Any]) -> tuple[int, str]:
    return problem(person.post(f"/v1/approvals/{approval_id}/decision", json=body))


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "queued"])
def test_what_is_not_pending_any_more_is_a_conflict_and_nothing_is_done(
    api: Api, desks: MakeDesk, ending: str
) -> None:
    desk = desks(Approval(on_reject="end"))
    run_id, (proposal,) = desk.propose()
    match ending:
        case "failed":
            desk.client.reject(proposal.approval_id, "fraud", by="alice")
        case "cancelled":
            desk.client.cancel(run_id)
        case _:
            desk.client.approve(proposal.approval_id, by="alice")
    if ending != "queued":
        desk.go_on(run_id)
    assert desk.row(run_id).status == ending
    executed = list(desk.ledger.entries)
    bob = api.person("bob", "operator")

    for body in decisions(proposal.arguments_hash):
        assert told(bob, proposal.approval_id, body) == (409, "decision-refused")

    assert desk.row(run_id).status == ending
    assert desk.ledger.entries == executed
    assert len(api.rows("SELECT FROM celeriac.approval_decisions")) == (ending != "cancelled")
    assert desk.violations() == []


def test_a_decision_during_the_call_is_a_conflict(
    api: Api, database: Database, broker_url: str
) -> None:
    answers: list[tuple[str, tuple[int, str]]] = []

    @tool(approval=Approval())
    def refund() -> str:
        """Pay money back, while others decide."""
        for body in decisions(proposal.arguments_hash):
            status = desk.row(run_id).status
            answers.append((status, told(bob, proposal.approval_id, body)))
        return "REFUNDED"

    desk = Desk(database, broker_url, Ledger(), [refund], [("refund", {})])
    bob = api.person("bob", "operator")
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")

    assert desk.go_on(run_id).status == "completed"

    assert answers == [("running", (409, "decision-refused"))] * 3
    assert desk.violations() == []
    desk.close()


def test_a_proposal_that_there_is_not_is_not_found(api: Api, desks: MakeDesk) -> None:
    desk = desks(Approval())
    _, (proposal,) = desk.propose()

    for body in decisions(proposal.arguments_hash):
        assert told(api.person("bob", "operator"), "a-nowhere", body) == (404, "unknown-approval")

    assert desk.ledger.entries == []


def test_each_question_of_the_checklist_has_to_be_answered(api: Api, desks: MakeDesk) -> None:
    desk = desks(Approval(checklist=QUESTIONS))
    run_id, (proposal,) = desk.propose()
    bob = api.person("bob", "operator")
    (approve, *_) = decisions(proposal.arguments_hash)

    for answers in ({}, {QUESTIONS[0]: "yes"}, {QUESTIONS[0]: "yes", QUESTIONS[1]: " "}):
        refused = told(bob, proposal.approval_id, {**approve, "answers": answers})
        assert refused == (422, "invalid-decision")
    assert api.rows("SELECT FROM celeriac.approval_decisions") == []

    answers = dict.fromkeys(QUESTIONS, "yes")
    decided = bob.post(
        f"/v1/approvals/{proposal.approval_id}/decision", json={**approve, "answers": answers}
    )
    assert decided.json()["status"] == "approved"
    assert api.rows("SELECT reviewer, answers FROM celeriac.approval_decisions") == [
        ("bob", answers)
    ]
    assert desk.go_on(run_id).status == "completed"
    assert desk.ledger.count("refund") == 1
