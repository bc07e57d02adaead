"""From a proposal to the call, and every way in which a person says otherwise."""

# features: 000-22, 000-23, 000-24, 000-25, 000-26, 000-27, 000-28, 000-29, 000-33, 000-34, 000-39,
# features: 002-30, 002-31, 004-41, 004-45, 004-46, 004-47, 004-49, 004-50, 004-51, 004-52, 004-59
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac import Agent, Approval, Client, Compensate, Rule, When
from celeriac.errors import (
    DecisionRefused,
    InvalidArguments,
    InvalidDecision,
    NotAllowed,
    UnknownApproval,
)
from celeriac.ids import DEFAULT_USER, ApprovalId, RunId, UserId, call_id
from celeriac.reports import Approval as Proposal
from celeriac.scripted import ScriptedModel, say
from celeriac_scheduler.expiry import expire_proposals
from celeriac_storage import expiring, requests
from celeriac_storage.database import Database, sqlstate
from celeriac_tasks import approving
from tests.review_desk import REFUND, Desk, Effect, Ledger, audit_tool, refund_tool, values
from tests.worker_in_process import Worker

MakeDesk = Callable[..., Desk]


@pytest.fixture
def desks(database: Database, broker_url: str) -> Iterator[MakeDesk]:
    """Makes a desk: by default its model asks for one refund, which one person must approve."""
    with ExitStack() as stack:

        def make(
            approval: Approval | None = None,
            calls: Any = (("refund", REFUND),),
            effect: Effect = "external",
            **more: Any,
        ) -> Desk:
            ledger = Ledger()
            tools = [
                refund_tool(ledger, approval or Approval(), effect, **more),
                audit_tool(ledger),
            ]
            desk = Desk(database, broker_url, ledger, tools, calls)
            stack.callback(desk.close)
            return desk

        yield make


# The proposal -------------------------------------------------------------------------------------


def test_the_run_stops_before_the_effect_and_holds_no_worker(desks: MakeDesk) -> None:
    desk = desks()

    run_id, proposals = desk.propose()

    row = desk.row(run_id)
    assert (row.status, row.phase, row.claim_token) == ("paused", "waiting_approval", None)
    assert [each.status for each in proposals] == ["pending"]
    assert desk.effect(run_id).state == "proposed"
    assert desk.ledger.entries == []
    assert desk.violations() == []


def test_a_proposal_alone_says_all_that_a_reviewer_needs(desks: MakeDesk) -> None:
    desk = desks(
        Approval(
            permissions_touched=["payments.refund"],
            blast_radius="{amount} leave our account for order {order_id}",
            data_lineage=["the order's own row"],
        ),
        rollback=Compensate(lambda ctx, order_id: None),  # noqa: ARG005 - never called
    )

    run_id, (proposal,) = desk.propose()

    assert (proposal.run_id, proposal.call_id, proposal.tool) == (run_id, "0.0", "refund")
    assert proposal.arguments == {"order_id": "O-1", "amount": "80.00", "note": ""}
    assert proposal.blast_radius == "80.00 leave our account for order O-1"
    assert proposal.permissions_touched == ["payments.refund"]
    assert proposal.data_lineage[0] == "the order's own row"
    assert proposal.rollback_plan == {"kind": "compensate"}
    assert proposal.idempotency_key == f"default:{run_id}:0.0"
    assert proposal.intent == "Pay money back to a customer."
    (row,) = desk.rows("SELECT * FROM celeriac.approvals")
    assert row.allowed_decisions == ["approve", "edit", "reject"]
    assert row.arguments_hash == desk.effect(run_id).fingerprint
    requested = [e for e in desk.client.events(run_id) if e.type == "approval.requested"]
    assert [event.data["approval_id"] for event in requested] == [row.approval_id]


@pytest.mark.parametrize(
    "missing",
    ["intent = ''", "blast_radius = ''", "data_lineage = '[]'", "permissions_touched = '[]'",
     "rollback_plan = '{}'", "idempotency_key = NULL", "reason = ''"],
)  # fmt: skip
def test_the_database_takes_no_proposal_with_a_part_missing(desks: MakeDesk, missing: str) -> None:
    desk = desks()
    desk.propose()

    with pytest.raises(DBAPIError) as refused:
        desk.damage(f"UPDATE celeriac.approvals SET {missing}")

    assert sqlstate(refused.value) in ("23514", "23502")


@pytest.mark.parametrize("status", ["approved", "rejected", "expired", "superseded", "revoked"])
def test_no_proposal_begins_as_a_decided_one(desks: MakeDesk, status: str) -> None:
    desk = desks()
    desk.propose()

    with pytest.raises(DBAPIError) as refused, desk.database.begin() as connection:
        connection.exec_driver_sql(
            """
            INSERT INTO celeriac.approvals
            SELECT (jsonb_populate_record(approval, jsonb_build_object('approval_id', 'forged',
                'version', 2, 'status', %s::text, 'surfaced_at', now(), 'decided_at', now(),
                'decided_by', 'nobody', 'revoked_because', 'x'))).*
            FROM celeriac.approvals AS approval
            """,
            (status,),
        )

    assert sqlstate(refused.value) == "CE006"


@pytest.mark.parametrize("state", ["approved", "in_flight", "not_done", "unknown"])
def test_no_call_begins_as_one_that_may_be_made(desks: MakeDesk, state: str) -> None:
    desk = desks()
    desk.propose()

    with pytest.raises(DBAPIError) as refused, desk.database.begin() as connection:
        connection.exec_driver_sql(
            """
            INSERT INTO celeriac.effects
            SELECT (jsonb_populate_record(effect, jsonb_build_object('call_id', '0.9',
                'call_index', 9, 'state', %s::text))).*
            FROM celeriac.effects AS effect
            """,
            (state,),
        )

    assert sqlstate(refused.value) == "CE006"


def _client_as(desk: Desk, role: str) -> Client:
    return Client(f"{desk.database.url}?options=-crole%3D{role}")


def test_a_login_of_the_reviewers_decides_and_says_who_may(desks: MakeDesk) -> None:
    desk = desks(Approval(roles=["refunds"]))
    run_id = desk.worker.start("desk")
    desk.go_on(run_id)
    reviewers = _client_as(desk, "celeriac_reviewer")

    reviewers.set_principal("bob", roles=["refunds"])
    (proposal,) = reviewers.approvals(run_id=run_id, by="bob")
    reviewers.edit(proposal.approval_id, values(amount="70.00"), by="bob")
    reviewers.close()

    assert desk.go_on(run_id).status == "completed"
    assert desk.ledger.amounts() == ["70.00"]


def test_a_workers_login_decides_nothing(desks: MakeDesk) -> None:
    desk = desks()
    _, (proposal,) = desk.propose()
    workers = _client_as(desk, "celeriac_worker")

    with pytest.raises(DBAPIError) as refused:
        workers.approve(proposal.approval_id, by="bob")
    assert sqlstate(refused.value) == "42501"  # insufficient privilege
    with pytest.raises(DBAPIError) as refused:
        workers.set_principal("bob", roles=["refunds"])
    assert sqlstate(refused.value) == "42501"
    workers.close()
    assert desk.client.approval(proposal.approval_id).status == "pending"


def test_a_call_whose_reach_nobody_could_see_is_not_proposed(desks: MakeDesk) -> None:
    desk = desks(Approval(blast_radius="{note}"))

    run_id, proposals = desk.propose()

    assert proposals == []
    assert desk.effect(run_id).state == "invalid"
    assert desk.row(run_id).status == "completed"  # the model was told, and went on
    assert desk.ledger.entries == []


def test_reading_again_mints_no_new_id(desks: MakeDesk) -> None:
    desk = desks()

    run_id, (first,) = desk.propose()

    assert desk.client.approvals(run_id=run_id, by="viewer") == [first]
    assert desk.client.approval(first.approval_id) == first
    assert desk.client.get(run_id).approvals == [first]


def test_nothing_is_asked_or_called_while_a_person_has_not_decided(desks: MakeDesk) -> None:
    desk = desks()
    run_id, _ = desk.propose()

    for _ in range(3):
        desk.worker.step(run_id)  # messages that arrive late

    assert len(desk.asked) == 1
    assert desk.ledger.entries == []
    assert desk.row(run_id).status == "paused"


def test_a_model_that_only_says_that_it_waits_for_somebody_does_not(
    database: Database, broker_url: str
) -> None:
    words = "I wait for your approval of this refund."
    agent = Agent("talker", ScriptedModel([say(words)]), tools=[refund_tool(Ledger(), Approval())])
    worker = Worker(database.url, broker_url, [agent])
    worker.process.start()

    row = worker.row(worker.run("talker"))

    worker.process.stop()
    assert (row.status, row.phase, row.result) == ("completed", None, words)
    with database.connect() as connection:
        assert connection.exec_driver_sql("SELECT FROM celeriac.approvals").all() == []


# Approve ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["external", "transactional", "none"])
def test_an_approved_call_is_executed_once_as_it_was_proposed(
    desks: MakeDesk, effect: Effect
) -> None:
    desk = desks(effect=effect)
    run_id, (proposal,) = desk.propose()

    decided = desk.client.approve(
        proposal.approval_id, by="alice", hash=proposal.arguments_hash, reason="paid twice"
    )
    row = desk.go_on(run_id)

    assert (decided.status, row.status) == ("approved", "completed")
    assert desk.ledger.amounts() == ["80.00"]
    (approval,) = desk.rows("SELECT * FROM celeriac.approvals")
    assert approval.consumed_by_attempt == 1
    assert approval.arguments_hash == desk.effect(run_id).fingerprint
    assert desk.violations() == []


def test_the_history_tells_it_in_order(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")
    desk.go_on(run_id)

    order = [
        "proposal.recorded",
        "approval.requested",
        "approval.surfaced",
        "approval.decided",
        "args.validated",
        "authz.checked",
        "effect.in_flight",
        "effect.committed",
    ]
    assert [type_ for type_ in desk.events(run_id) if type_ in order] == order


def test_the_decision_is_recorded_with_what_it_was_made_on(desks: MakeDesk) -> None:
    desk = desks(Approval(roles=["refunds"]))
    desk.client.set_principal("alice", roles=["refunds", "staff"], by="root")
    _, (proposal,) = desk.propose()
    desk.client.approvals(by="alice")

    desk.client.approve(proposal.approval_id, by="alice", reason="paid twice")

    (decision,) = desk.rows("SELECT * FROM celeriac.approval_decisions")
    assert (decision.reviewer, decision.decision, decision.reason) == (
        "alice", "approve", "paid twice",
    )  # fmt: skip
    assert decision.roles == ["refunds", "staff"]
    assert decision.principal_version == 1
    assert decision.seconds_to_decision >= 0
    (approval,) = desk.rows("SELECT * FROM celeriac.approvals")
    assert (approval.decided_by, approval.policy_version) == ("alice", decision.policy_version)
    shown = desk.rows(
        "SELECT detail FROM celeriac.audit WHERE action = 'approval.shown' AND actor = 'alice'"
    )
    assert [row.detail["rendering_hash"] for row in shown] == [decision.rendering_hash.hex()]
    assert desk.trail(proposal.approval_id) == [
        ("viewer", "approval.shown", "allowed"),
        ("alice", "approval.shown", "allowed"),
        ("alice", "approval.approve", "allowed"),
    ]


def test_the_database_takes_no_decision_without_what_it_was_made_on(desks: MakeDesk) -> None:
    desk = desks()
    _, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")
    of_decision = ("reviewer", "roles", "principal_version", "policy_version", "reason", "decision",
                   "arguments_hash", "rendering_hash", "shown_at", "decided_at")  # fmt: skip
    of_approval = ("decided_by", "decided_at", "policy_version", "arguments", "arguments_hash")

    for table, columns in (("approval_decisions", of_decision), ("approvals", of_approval)):
        for column in columns:
            with pytest.raises(DBAPIError) as refused:
                desk.damage(f"UPDATE celeriac.{table} SET {column} = NULL")
            assert sqlstate(refused.value) in ("23502", "23514"), column


def test_what_nobody_was_shown_cannot_be_decided(desks: MakeDesk) -> None:
    desk = desks()
    run_id = desk.worker.start("desk")
    desk.go_on(run_id)
    (approval_id,) = desk.rows("SELECT approval_id FROM celeriac.approvals")[0]

    with pytest.raises(DecisionRefused, match="never shown to anybody"):
        desk.client.approve(approval_id, by="alice")

    assert desk.effect(run_id).state == "proposed"


def test_the_database_takes_no_decision_about_what_nobody_was_shown(desks: MakeDesk) -> None:
    desk = desks()
    desk.go_on(desk.worker.start("desk"))

    for status in ("approved", "rejected"):
        with pytest.raises(DBAPIError) as refused:
            desk.damage(
                f"UPDATE celeriac.approvals SET status = '{status}', decided_by = 'alice',"
                " decided_at = clock_timestamp()"
            )
        assert sqlstate(refused.value) == "23514"
        assert "approvals_surfaced" in str(refused.value)


def test_another_process_completes_what_a_dead_one_proposed_a_day_later(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()
    desk.worker.process.stop()
    desk.let_time_pass(hours=25)

    desk.client.approve(proposal.approval_id, by="alice")
    assert desk.row(run_id).status == "queued"
    desk.new_worker()

    assert desk.go_on(run_id).status == "completed"
    assert desk.ledger.amounts() == ["80.00"]


# Reject -------------------------------------------------------------------------------------------


def test_a_rejected_call_is_never_executed_and_the_model_is_told_why(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()

    desk.client.reject(proposal.approval_id, "not their order", by="alice")
    row = desk.go_on(run_id)

    assert (row.status, row.outcome) == ("completed", "completed")
    assert "alice rejected this call of refund" in desk.shown
    assert "not their order" in desk.shown
    assert desk.ledger.entries == []
    with pytest.raises(DecisionRefused, match="rejected already"):
        desk.client.approve(proposal.approval_id, by="bob")
    assert desk.violations() == []


def test_a_rejection_ends_the_run_if_the_tool_says_so(desks: MakeDesk) -> None:
    desk = desks(Approval(on_reject="end"), calls=[("refund", REFUND), ("refund", REFUND)])
    run_id, (first, second) = desk.propose()

    desk.client.reject(first.approval_id, "fraud", by="alice")
    row = desk.go_on(run_id)

    assert (row.status, row.outcome, row.result) == ("failed", "rejected", None)
    assert "fraud" in row.error["message"]
    assert desk.ledger.entries == []
    assert len(desk.asked) == 1
    assert desk.client.approval(second.approval_id).status == "cancelled"
    with pytest.raises(DecisionRefused):
        desk.client.approve(second.approval_id, by="alice")
    assert desk.violations() == []


def test_a_rejection_needs_a_reason(desks: MakeDesk) -> None:
    desk = desks()
    _, (proposal,) = desk.propose()

    with pytest.raises(InvalidDecision, match="reason"):
        desk.client.reject(proposal.approval_id, "  ", by="alice")

    assert desk.client.approval(proposal.approval_id).status == "pending"


# Edit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        values(amount=-1),
        values(amount="-1"),
        values(amount="abc"),
        values(amount=""),
        values(amount="0"),
        values(amount="18.505"),
        values(amount=18.505),
        values(amount="1E+3"),
        values(amount="12.5\n"),
        values(amount="\uff11\uff12"),  # full-width digits
        values(amount="Infinity"),
        values(amount=True),
        values(amount="12345678901.5"),
        values(order_id=None),
        values(order_id=7),
        values(more=1),
        '{"order_id": "O-1", "amount": NaN}',
        '{"order_id": "O-1", "amount": 1e400}',
        '{"order_id": "O-1", "amount": 1, "amount": 2}',
        '["O-1", 1]',
        "",
    ],
)
def test_an_edit_that_the_tool_cannot_take_changes_nothing(desks: MakeDesk, arguments: Any) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()

    with pytest.raises(InvalidArguments):
        desk.client.edit(proposal.approval_id, arguments, by="alice")

    assert desk.client.approvals(run_id=run_id) == [proposal]
    assert desk.ledger.entries == []
    assert desk.trail(proposal.approval_id)[-2] == ("alice", "approval.edit", "denied")
    desk.client.edit(proposal.approval_id, values(amount="12.50"), by="alice")
    desk.go_on(run_id)
    assert desk.ledger.amounts() == ["12.50"]


def test_an_edit_executes_its_own_arguments_and_keeps_both(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()

    decided = desk.client.edit(proposal.approval_id, values(amount="12.50"), by="alice")
    desk.go_on(run_id)

    assert (decided.status, decided.version) == ("approved", 2)
    assert decided.approval_id != proposal.approval_id
    assert desk.ledger.amounts() == ["12.50"]
    rows = desk.rows("SELECT * FROM celeriac.approvals ORDER BY version")
    assert [row.arguments["amount"] for row in rows] == ["80.00", "12.50"]
    assert [row.status for row in rows] == ["superseded", "approved"]
    assert rows[1].edited_from == rows[0].approval_id
    assert {"edited_by": "alice"} in rows[1].data_lineage
    assert desk.violations() == []


def test_an_edit_may_not_change_what_the_policy_calls_immutable(desks: MakeDesk) -> None:
    desk = desks(Approval(immutable=["order_id"]))
    run_id, (proposal,) = desk.propose()

    with pytest.raises(InvalidArguments, match='order_id is "O-1" and may not be changed'):
        desk.client.edit(proposal.approval_id, values(order_id="O-2"), by="alice")

    assert desk.client.approvals(run_id=run_id) == [proposal]


def test_an_edit_that_asks_for_more_is_left_to_those_who_may(desks: MakeDesk) -> None:
    desk = desks(
        Approval(roles=["refunds"], rules=[Rule(When("amount", ">", "500"), roles=["finance"])])
    )
    desk.client.set_principal("alice", roles=["refunds"])
    desk.client.set_principal("carol", roles=["finance"])
    run_id, (proposal,) = desk.propose()

    decided = desk.client.edit(proposal.approval_id, values(amount="500.01"), by="alice")

    assert (decided.status, decided.approvals) == ("pending", 0)
    assert desk.row(run_id).status == "paused"
    with pytest.raises(NotAllowed, match="finance is asked for"):
        desk.client.approve(decided.approval_id, by="alice")
    desk.client.approve(decided.approval_id, by="carol")
    desk.go_on(run_id)
    assert desk.ledger.amounts() == ["500.01"]


def test_an_approval_of_the_version_before_an_edit_does_not_count(desks: MakeDesk) -> None:
    desk = desks(Approval(quorum=2))
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")

    edited = desk.client.edit(proposal.approval_id, values(amount="70.00"), by="bob")

    assert (edited.status, edited.approvals, edited.quorum) == ("pending", 1, 2)
    with pytest.raises(DecisionRefused, match="superseded already"):
        desk.client.approve(proposal.approval_id, by="carol")
    desk.client.approve(edited.approval_id, by="alice")
    desk.go_on(run_id)
    assert desk.ledger.amounts() == ["70.00"]


def test_a_decision_about_another_hash_than_the_one_shown_is_refused(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()

    with pytest.raises(DecisionRefused, match="this is not what you were shown"):
        desk.client.approve(proposal.approval_id, by="alice", hash="0" * 64)

    assert desk.client.approvals(run_id=run_id) == [proposal]


# Who ----------------------------------------------------------------------------------------------


def test_whoever_owns_the_run_does_not_approve_it(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()

    with pytest.raises(NotAllowed, match="owns the run"):
        desk.client.approve(proposal.approval_id, by=DEFAULT_USER)

    assert desk.client.approvals(run_id=run_id) == [proposal]


def test_the_owner_may_if_the_tool_allows_it(desks: MakeDesk) -> None:
    desk = desks(Approval(allow_self=True))
    run_id, (proposal,) = desk.propose()

    desk.client.approve(proposal.approval_id)

    assert desk.go_on(run_id).status == "completed"


def test_an_approval_of_somebody_without_the_role_counts_nothing(desks: MakeDesk) -> None:
    desk = desks(Approval(roles=["refunds"]))
    desk.client.set_principal("bob", roles=["intern"])
    desk.client.set_principal("alice", roles=["refunds"])
    run_id, (proposal,) = desk.propose()

    for nobody in ("bob", "mallory"):
        with pytest.raises(NotAllowed, match="refunds is asked for"):
            desk.client.approve(proposal.approval_id, by=nobody)

    assert desk.client.approvals(run_id=run_id) == [proposal]
    assert ("bob", "approval.approve", "denied") in desk.trail(proposal.approval_id)
    assert desk.rows("SELECT FROM celeriac.approval_decisions") == []
    desk.client.approve(proposal.approval_id, by="alice")
    assert desk.go_on(run_id).status == "completed"


@pytest.mark.parametrize(
    ("permissions", "why"),
    [
        ({"refund": [When("amount", "<=", "79.99")]}, 'only with amount <= "79.99"'),
        ({"refund": [When("nothing", "<=", 1)]}, "only with nothing <= 1"),
        ({"ship": []}, "may not decide calls of refund"),
    ],
)
def test_a_limit_of_the_reviewer_is_one_on_these_very_arguments(
    desks: MakeDesk, permissions: Any, why: str
) -> None:
    desk = desks()
    desk.client.set_principal("alice", permissions=permissions)
    run_id, (proposal,) = desk.propose()

    with pytest.raises(NotAllowed, match=why):
        desk.client.approve(proposal.approval_id, by="alice")

    assert desk.client.approvals(run_id=run_id) == [proposal]


def test_somebody_disabled_decides_nothing(desks: MakeDesk) -> None:
    desk = desks()
    desk.client.set_principal("alice", disabled=True)
    _, (proposal,) = desk.propose()

    with pytest.raises(NotAllowed, match="alice is disabled"):
        desk.client.reject(proposal.approval_id, "no", by="alice")


def test_a_quorum_is_so_many_different_persons(desks: MakeDesk) -> None:
    desk = desks(Approval(quorum=2))
    run_id, (proposal,) = desk.propose()

    first = desk.client.approve(proposal.approval_id, by="alice")
    with pytest.raises(DecisionRefused, match="alice has decided it already"):
        desk.client.approve(proposal.approval_id, by="alice")

    assert (first.status, first.approvals, first.quorum) == ("pending", 1, 2)
    assert desk.row(run_id).status == "paused"
    desk.client.approve(proposal.approval_id, by="bob")
    assert desk.go_on(run_id).status == "completed"
    assert desk.ledger.count("refund") == 1
    assert desk.violations() == []


def test_what_cannot_be_taken_back_needs_two(desks: MakeDesk) -> None:
    desk = desks(rollback="none")
    run_id, (proposal,) = desk.propose()

    assert desk.client.approve(proposal.approval_id, by="alice").status == "pending"
    assert desk.row(run_id).status == "paused"
    assert desk.client.approve(proposal.approval_id, by="bob").status == "approved"


def test_the_database_takes_no_weaker_review_of_it(desks: MakeDesk) -> None:
    desk = desks()
    desk.propose()

    with pytest.raises(DBAPIError) as refused:
        desk.damage('UPDATE celeriac.approvals SET rollback_plan = \'{"kind": "none"}\'')

    assert sqlstate(refused.value) == "23514"


def test_every_question_of_the_checklist_is_answered(desks: MakeDesk) -> None:
    questions = ["Did you call the customer?", "Is the order paid?"]
    desk = desks(Approval(checklist=questions), rollback="none")
    run_id, (proposal,) = desk.propose()

    for answers in ({}, {questions[0]: "yes"}, {questions[0]: "yes", questions[1]: " "}):
        with pytest.raises(InvalidDecision, match="Is the order paid"):
            desk.client.approve(proposal.approval_id, by="alice", answers=answers)
    desk.client.approve(proposal.approval_id, by="alice", answers=dict.fromkeys(questions, "yes"))

    assert desk.go_on(run_id).status == "completed"
    (decision,) = desk.rows("SELECT answers FROM celeriac.approval_decisions")
    assert decision.answers == dict.fromkeys(questions, "yes")


def test_a_small_call_needs_nobody(desks: MakeDesk) -> None:
    desk = desks(Approval(unless=When("amount", "<=", "80")))

    run_id, proposals = desk.propose()

    assert proposals == []
    assert desk.row(run_id).status == "completed"
    assert desk.ledger.amounts() == ["80.00"]


# Several calls ------------------------------------------------------------------------------------


def test_a_sibling_that_needs_nobody_is_made_once_and_before_the_wait(desks: MakeDesk) -> None:
    desk = desks(calls=[("refund", REFUND), ("look_up", {"order_id": "O-1"})])

    run_id, (proposal,) = desk.propose()

    assert desk.ledger.count("look_up") == 1
    assert desk.effect(run_id, call_id(0, 1)).state == "committed"
    desk.client.approve(proposal.approval_id, by="alice")
    assert desk.go_on(run_id).status == "completed"
    assert (desk.ledger.count("look_up"), desk.ledger.count("refund")) == (1, 1)
    assert len(desk.asked) == 2
    assert desk.violations() == []


def test_only_what_was_decided_goes_on_and_the_rest_stays_pending(desks: MakeDesk) -> None:
    desk = desks(calls=[("refund", values(amount=str(n))) for n in (1, 2, 3)])
    run_id, (first, second, third) = desk.propose()

    desk.client.approve(second.approval_id, by="alice")
    row = desk.go_on(run_id)

    assert (row.status, row.phase) == ("paused", "waiting_approval")
    assert desk.ledger.amounts() == ["2"]
    pending = desk.client.approvals(run_id=run_id)
    assert [each.approval_id for each in pending] == [first.approval_id, third.approval_id]
    assert len(desk.asked) == 1
    desk.client.reject(third.approval_id, "no", by="alice")
    desk.go_on(run_id)
    desk.client.approve(first.approval_id, by="alice")
    assert desk.go_on(run_id).status == "completed"
    assert desk.ledger.amounts() == ["2", "1"]
    assert desk.violations() == []


def test_a_decision_during_a_siblings_call_is_not_waited_for_again(desks: MakeDesk) -> None:
    desk = desks(calls=[("refund", values(amount=str(n))) for n in (1, 2)])
    run_id, (first, second) = desk.propose()
    desk.client.approve(first.approval_id, by="alice")
    claimed = desk.row(run_id)
    assert claimed.status == "queued"

    record = desk.ledger.entries.append

    def decide_meanwhile(entry: Any) -> None:
        record(entry)
        if len(desk.ledger.entries) == 1:
            desk.client.approve(second.approval_id, by="alice")

    desk.ledger.entries = _Hooked(decide_meanwhile)

    assert desk.go_on(run_id).status == "completed"
    assert len(desk.asked) == 2


class _Hooked(list[Any]):
    def __init__(self, hook: Callable[[Any], None]) -> None:
        super().__init__()
        self._hook = hook
        self._is_inside = False

    def append(self, entry: Any) -> None:
        super().append(entry)
        self._hook_once(entry)

    def _hook_once(self, entry: Any) -> None:
        if len(self) == 1:
            self._hook(entry)


# What changes between the decision and the call ---------------------------------------------------


def test_a_role_revoked_in_between_stops_the_call_and_asks_again(desks: MakeDesk) -> None:
    desk = desks(Approval(roles=["refunds"]))
    desk.client.set_principal("alice", roles=["refunds"])
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")

    desk.client.set_principal("alice", roles=[])
    row = desk.go_on(run_id)

    assert (row.status, row.phase) == ("paused", "waiting_approval")
    assert desk.ledger.entries == []
    (again,) = desk.client.approvals(run_id=run_id)
    assert (again.version, again.arguments) == (2, proposal.arguments)
    assert desk.client.approval(proposal.approval_id).status == "revoked"
    assert desk.trail(proposal.approval_id)[-1][1:] == ("call.execute", "denied")
    desk.client.set_principal("bob", roles=["refunds"])
    desk.client.approve(again.approval_id, by="bob")
    assert desk.go_on(run_id).status == "completed"
    assert desk.ledger.amounts() == ["80.00"]
    assert desk.violations() == []


@pytest.mark.parametrize("effect", ["external", "transactional", "none"])
def test_a_limit_lowered_in_between_stops_each_kind_of_call(
    desks: MakeDesk, effect: Effect
) -> None:
    desk = desks(effect=effect)
    run_id, (proposal,) = desk.propose()
    desk.client.set_principal("alice", permissions={"*": ()})
    desk.client.approve(proposal.approval_id, by="alice")

    desk.client.set_principal("alice", permissions={"*": [When("amount", "<", "80")]})
    row = desk.go_on(run_id)

    assert (row.status, row.phase) == ("paused", "waiting_approval")
    assert desk.ledger.entries == []


def test_arguments_changed_behind_the_decision_are_never_executed(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")

    desk.damage(
        """
        UPDATE celeriac.effects SET arguments = arguments || '{"amount": "9999.00"}',
            fingerprint = sha256(convert_to(concat_ws(E'\\n', tool, tool_version,
                (arguments || '{"amount": "9999.00"}')::text), 'UTF8'))
        """
    )
    row = desk.go_on(run_id)

    assert (row.status, row.error["kind"]) == ("needs_attention", "approval_lost")
    assert desk.ledger.entries == []


def test_arguments_and_proposal_changed_behind_the_decision_are_never_executed(
    desks: MakeDesk,
) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")
    changed = 'arguments || \'{"amount": "9999.00"}\''
    hashed = f"sha256(convert_to(concat_ws(E'\\n', tool, tool_version, ({changed})::text), 'UTF8'))"

    desk.damage(f"UPDATE celeriac.effects SET arguments = {changed}, fingerprint = {hashed}")
    desk.damage(f"UPDATE celeriac.approvals SET arguments = {changed}, arguments_hash = {hashed}")
    row = desk.go_on(run_id)

    assert (row.status, row.error["kind"]) == ("needs_attention", "approval_lost")
    assert desk.ledger.entries == []
    assert desk.violations() != []


def test_another_proposal_in_the_place_of_the_approved_one_is_refused(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")

    desk.damage("UPDATE celeriac.approvals SET approval_id = 'another'")
    row = desk.go_on(run_id)

    assert row.status == "needs_attention"
    assert desk.ledger.entries == []


def test_an_approval_that_ran_out_before_the_call_is_asked_for_again(desks: MakeDesk) -> None:
    desk = desks(Approval(expires_seconds=3600))
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")
    desk.let_time_pass(hours=2)

    row = desk.go_on(run_id)

    assert (row.status, row.phase) == ("paused", "waiting_approval")
    assert desk.ledger.entries == []
    assert [each.version for each in desk.client.approvals(run_id=run_id)] == [2]


def test_code_of_another_version_does_not_execute_what_was_approved(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")
    newer = desks(version="2")

    newer.go_on(run_id)

    row = newer.row(run_id)
    assert (row.status, row.error["kind"]) == ("needs_attention", "approval_lost")
    assert newer.ledger.entries == []


# Endings without a decision -----------------------------------------------------------------------


def test_a_cancelled_run_takes_its_proposals_with_it(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()

    desk.client.cancel(run_id, by="alice")

    assert desk.client.approval(proposal.approval_id).status == "cancelled"
    with pytest.raises(DecisionRefused, match="cancelled already"):
        desk.client.approve(proposal.approval_id, by="bob")
    assert desk.ledger.entries == []
    assert desk.violations() == []


def test_a_cancel_while_the_model_answers_leaves_nobody_asked(desks: MakeDesk) -> None:
    # The answer is recorded, with what it proposes, as if the cancel had come right after it.
    desk = desks(Approval(expires_seconds=3600))
    run_id = desk.worker.start("desk")

    def cancel() -> None:
        desk.client.cancel(run_id, by="alice")

    desk.asked = _Hooked(lambda _: cancel())

    row = desk.go_on(run_id)

    assert row.status == "cancelled"
    assert _statuses(desk, run_id) == ["cancelled"]
    assert desk.events(run_id)[-2:] == ["approval.requested", "run.cancelled"]
    assert desk.violations() == []


def test_a_cancel_while_it_is_proposed_again_leaves_nobody_asked(
    desks: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desks(Approval(roles=["refunds"]))
    desk.client.set_principal("alice", roles=["refunds"])
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")
    desk.client.set_principal("alice", roles=[])
    propose_again = approving.proposed_again

    def cancelled_meanwhile(*arguments: Any) -> Any:
        desk.client.cancel(run_id, by="alice")
        return propose_again(*arguments)

    monkeypatch.setattr(approving, "proposed_again", cancelled_meanwhile)
    row = desk.go_on(run_id)

    assert row.status == "cancelled"
    assert _statuses(desk, run_id) == ["revoked", "cancelled"]
    assert desk.violations() == []


def _statuses(desk: Desk, run_id: RunId) -> list[str]:
    rows = desk.rows(
        "SELECT status FROM celeriac.approvals WHERE run_id = %s ORDER BY version", run_id
    )
    return [row[0] for row in rows]


def test_a_proposal_that_cannot_expire_keeps_no_other_from_it(desks: MakeDesk) -> None:
    desk = desks(Approval(expires_seconds=3600))
    ended, (left_behind,) = desk.propose()
    with desk.database.begin() as connection:
        requests.request_cancel(connection, ended, UserId("alice"))
    desk.damage("UPDATE celeriac.approvals SET status = 'pending'")
    damaged, (_,) = _propose_again(desk)
    desk.damage(f"UPDATE celeriac.runs SET last_event_seq = 1 WHERE run_id = '{damaged}'")
    waiting, (proposal,) = _propose_again(desk)
    desk.let_time_pass(hours=2)

    with pytest.raises(DBAPIError):
        expire_proposals(desk.database)

    assert desk.client.approval(proposal.approval_id).status == "expired"
    assert desk.row(waiting).status == "queued"
    assert desk.client.approval(left_behind.approval_id).status == "pending"


def _propose_again(desk: Desk) -> tuple[RunId, list[Proposal]]:
    desk.asked.clear()
    return desk.propose()


def test_a_run_cancelled_after_the_decision_executes_nothing(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")

    desk.client.cancel(run_id, by="alice")
    desk.worker.step(run_id)

    assert desk.row(run_id).status == "cancelled"
    assert desk.ledger.entries == []
    assert desk.violations() == []


def test_nobody_in_time_is_neither_a_yes_nor_an_answer_later(desks: MakeDesk) -> None:
    desk = desks(Approval(expires_seconds=3600))
    run_id, (proposal,) = desk.propose()
    desk.let_time_pass(hours=2)

    with pytest.raises(DecisionRefused, match="it expired at"):
        desk.client.approve(proposal.approval_id, by="alice")
    with desk.database.connect() as connection:
        overdue = expiring.overdue(connection)
    with desk.database.begin() as connection:
        assert [expiring.expire(connection, each) for each in overdue] == [True]
    row = desk.go_on(run_id)

    assert row.status == "completed"
    assert "nobody decided about this call of refund" in desk.shown
    assert desk.ledger.entries == []
    with pytest.raises(DecisionRefused, match="expired already"):
        desk.client.approve(proposal.approval_id, by="alice")
    assert desk.violations() == []


def test_what_is_not_due_does_not_expire(desks: MakeDesk) -> None:
    desk = desks(Approval(expires_seconds=3600))
    _, (proposal,) = desk.propose()

    with desk.database.begin() as connection:
        assert expiring.overdue(connection) == []
        assert not expiring.expire(connection, proposal.approval_id)


def test_an_unknown_proposal_is_unknown(desks: MakeDesk) -> None:
    desk = desks()

    with pytest.raises(UnknownApproval):
        desk.client.approve("a-nowhere", by="alice")


def test_a_decision_about_a_run_that_has_ended_is_refused(desks: MakeDesk) -> None:
    desk = desks()
    run_id, (proposal,) = desk.propose()
    with desk.database.begin() as connection:
        requests.request_cancel(connection, run_id, UserId("alice"))
    desk.damage("UPDATE celeriac.approvals SET status = 'pending'")

    with pytest.raises(DecisionRefused, match="its run is cancelled"):
        desk.client.approve(ApprovalId(proposal.approval_id), by="bob")

    assert desk.ledger.entries == []
