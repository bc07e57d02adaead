"""The audit sees each kind of damage to proposals and decisions; what it cannot undo, it tells.
And the database refuses by itself what a worker's login must not be able to do."""

# features: 000-28, 002-30, 004-41
from collections.abc import Iterator

import pytest
from sqlalchemy.exc import DBAPIError

from celeriac import Approval
from celeriac.ids import RunId
from celeriac_storage.audit import audit
from celeriac_storage.database import Database, sqlstate
from tests.review_desk import REFUND, Desk, Ledger, refund_tool

REJECTED_LATER = """
UPDATE celeriac.approvals SET status = 'rejected', consumed_at = NULL, consumed_by_attempt = NULL
"""
OF_ANOTHER_TENANT = """
INSERT INTO celeriac.tenants VALUES ('other');
UPDATE celeriac.approvals SET tenant_id = 'other'
"""


@pytest.fixture
def desk(database: Database, broker_url: str) -> Iterator[Desk]:
    """A desk with a run that waits, `pending`, and one whose call was approved and made, `done`."""
    ledger = Ledger()
    tools = [refund_tool(ledger, Approval(roles=["refunds"], quorum=2))]
    desk = Desk(database, broker_url, ledger, tools, [("refund", REFUND)])
    for user in ("alice", "bob"):
        desk.client.set_principal(user, roles=["refunds"])
    yield desk
    desk.close()


@pytest.fixture
def done(desk: Desk) -> RunId:
    run_id, (proposal,) = desk.propose()
    for user in ("alice", "bob"):
        desk.client.approve(proposal.approval_id, by=user)
    assert desk.go_on(run_id).status == "completed"
    assert desk.violations() == []
    return run_id


@pytest.mark.parametrize(
    ("sql", "detail"),
    [
        ("UPDATE celeriac.effects SET requirement = NULL", "says that it needs nobody"),
        ("UPDATE celeriac.effects SET version = 7", "no proposal of this version"),
        ("UPDATE celeriac.approvals SET consumed_at = NULL, consumed_by_attempt = NULL",
         "its approval was not used"),
        ("UPDATE celeriac.approvals SET expires_at = consumed_at - interval '1 s'",
         "its approval had run out"),
        ("UPDATE celeriac.approvals SET arguments_hash = '\\x00'", "other arguments were approved"),
        ("DELETE FROM celeriac.approval_decisions WHERE reviewer = 'bob'", "1 of 2 approvals"),
        ("UPDATE celeriac.approval_decisions SET arguments_hash = ''", "about other arguments"),
        ("UPDATE celeriac.approvals SET requested_by = 'bob'", "approved by the owner of the run"),
        ("UPDATE celeriac.approval_decisions SET roles = '{}'", "approved without the role"),
        ("UPDATE celeriac.effect_attempts SET approval_id = NULL", "no attempt was made on its"),
        (REJECTED_LATER, "its proposal is rejected"),
    ],
)  # fmt: skip
def test_an_executed_call_without_a_decision_that_held_is_seen(
    desk: Desk, done: RunId, sql: str, detail: str
) -> None:
    desk.damage(sql)

    found = [each for each in audit(desk.database) if detail in each.detail]

    assert [(each.invariant, each.run_id) for each in found] == [(5, done)]


@pytest.mark.parametrize(
    ("sql", "detail"),
    [
        ("UPDATE celeriac.approvals SET status = 'cancelled'", "call 0.0 is proposed"),
        ("UPDATE celeriac.effects SET state = 'rejected'", "call 0.0 is rejected"),
        ("UPDATE celeriac.effects SET arguments = '{}'", "proposal pending"),
        (OF_ANOTHER_TENANT, "proposal pending"),
    ],
)  # fmt: skip
def test_a_proposal_that_does_not_stand_for_its_call_is_seen(
    desk: Desk, sql: str, detail: str
) -> None:
    run_id, _ = desk.propose()
    assert desk.violations() == []

    desk.damage(sql)

    found = [each for each in audit(desk.database) if detail in each.detail]
    assert [(each.invariant, each.run_id) for each in found] == [(5, run_id)]


def test_a_proposals_wrong_hash_is_seen(desk: Desk, done: RunId) -> None:
    desk.damage("UPDATE celeriac.approvals SET tool_version = '9'")

    assert [each.run_id for each in audit(desk.database) if each.invariant == 7] == [done]


# What the database refuses ------------------------------------------------------------------------


@pytest.fixture
def worker_database(database_url: str) -> Iterator[Database]:
    """Connections that have the rights of `celeriac_worker` and no others."""
    database = Database(f"{database_url}?options=-crole%3Dceleriac_worker")
    yield database
    database.close()


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO celeriac.approval_decisions (approval_id) VALUES ('a')",
        "UPDATE celeriac.principals SET roles = '{refunds}'",
        "INSERT INTO celeriac.principals (tenant_id, user_id) VALUES ('default', 'mallory')",
        "UPDATE celeriac.approvals SET quorum = 1",
        "UPDATE celeriac.approvals SET arguments = '{}'",
        "DELETE FROM celeriac.audit",
    ],
)
def test_a_worker_has_no_right_to_decide(worker_database: Database, sql: str) -> None:
    assert refusal(worker_database, sql) == "42501"


@pytest.mark.parametrize("status", ["approved", "rejected", "superseded", "expired"])
def test_a_worker_cannot_end_a_proposal_that_nobody_decided(
    desk: Desk, worker_database: Database, status: str
) -> None:
    desk.propose()

    code = refusal(worker_database, f"UPDATE celeriac.approvals SET status = '{status}'")

    assert code == "CE006"


def test_a_call_that_needs_a_decision_cannot_start_without_one(desk: Desk) -> None:
    desk.propose()

    assert refusal(desk.database, "UPDATE celeriac.effects SET state = 'approved'") == "CE006"
    assert refusal(desk.database, "UPDATE celeriac.effects SET state = 'in_flight'") == "CE002"
    desk.damage("UPDATE celeriac.effects SET state = 'planned'")
    assert refusal(desk.database, "UPDATE celeriac.effects SET state = 'in_flight'") == "CE006"


@pytest.mark.parametrize(
    "change",
    [
        "arguments = '{}'",
        "arguments_hash = '\\x00'",
        "blast_radius = 'none'",
        "requirement = '{}'",
        "quorum = 1",
        "requested_by = 'mallory'",
        "expires_at = NULL",
        "surfaced_at = NULL",
        "consumed_at = clock_timestamp()",
    ],
)
@pytest.mark.usefixtures("done")
def test_what_was_proposed_shown_and_used_never_changes(desk: Desk, change: str) -> None:
    desk.damage("UPDATE celeriac.approvals SET expires_at = now() + interval '1 h'")

    assert refusal(desk.database, f"UPDATE celeriac.approvals SET {change}") == "CE003"


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE celeriac.approval_decisions SET reason = ''",
        "DELETE FROM celeriac.approval_decisions",
        "UPDATE celeriac.audit SET actor = 'nobody'",
        "DELETE FROM celeriac.audit",
        "DELETE FROM celeriac.approvals",
        "DELETE FROM celeriac.principals",
    ],
)
def test_decisions_and_their_trail_are_only_added_to(desk: Desk, sql: str) -> None:
    assert refusal(desk.database, sql) == "CE001"


def refusal(database: Database, sql: str) -> str | None:
    with pytest.raises(DBAPIError) as refused, database.connect() as connection:
        connection.exec_driver_sql(sql)
    return sqlstate(refused.value)
