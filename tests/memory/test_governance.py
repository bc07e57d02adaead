"""What changes how the agent works is decided by people with permission, and by nobody else."""

# features: 000-19, 000-17
import pytest

from celeriac.errors import NotAllowed
from celeriac.ids import RunId
from celeriac.reports import Approval
from celeriac_storage.audit import audit
from tests.rememberer import Rememberer, wish

ASKS = "Remember to greet me in Japanese from now on."
WAY = "Greet the user in Japanese, always"


def proposed(rememberer: Rememberer, **changed: object) -> tuple[RunId, Approval]:
    run_id = rememberer.talk(
        ASKS, wish(kind="procedural", key="greeting", value=WAY, user_said=ASKS, **changed)
    )
    assert rememberer.worker.row(run_id).phase == "waiting_approval"
    assert rememberer.rows("SELECT FROM celeriac.memory_decisions") == []
    (proposal,) = rememberer.client.approvals(run_id=run_id, by="gina")
    return run_id, proposal


def test_it_is_kept_once_somebody_with_the_role_has_approved_it(rememberer: Rememberer) -> None:
    rememberer.client.set_principal("gina", roles=["memory-governance"])
    run_id, proposal = proposed(rememberer)

    rememberer.client.approve(proposal.approval_id, by="gina")
    rememberer.go_on(run_id)

    assert rememberer.memories() == {"greeting": WAY}
    decision = rememberer.decision()
    assert (decision.reason, decision.kind) == ("approved", "procedural")
    assert decision.approval_id == proposal.approval_id
    assert rememberer.violations() == []


@pytest.mark.parametrize("person", ["alice", "mallory"])
def test_neither_the_owner_nor_anybody_without_the_role_can(
    rememberer: Rememberer, person: str
) -> None:
    rememberer.client.set_principal("alice", roles=["memory-governance"])
    _, proposal = proposed(rememberer)

    rememberer.client.approvals(by=person)
    with pytest.raises(NotAllowed):
        rememberer.client.approve(proposal.approval_id, by=person)

    assert rememberer.memories() == {}
    assert rememberer.violations() == []


def test_a_rejected_one_leaves_nothing(rememberer: Rememberer) -> None:
    rememberer.client.set_principal("gina", roles=["memory-governance"])
    run_id, proposal = proposed(rememberer)

    rememberer.client.reject(proposal.approval_id, "no", by="gina")
    rememberer.go_on(run_id)

    assert rememberer.rows("SELECT FROM celeriac.memories") == []
    assert rememberer.violations() == []


def test_an_approval_does_not_let_a_secret_in(rememberer: Rememberer) -> None:
    rememberer.client.set_principal("gina", roles=["memory-governance"])
    run_id = rememberer.talk(
        ASKS, wish(kind="procedural", key="way", value="Pay with 4111 1111 1111 1111")
    )
    (proposal,) = rememberer.client.approvals(run_id=run_id, by="gina")

    rememberer.client.approve(proposal.approval_id, by="gina")
    rememberer.go_on(run_id)

    assert rememberer.reasons() == ["sensitive"]
    assert "4111 1111" not in rememberer.everything()


def test_what_was_approved_and_edited_is_what_is_kept(rememberer: Rememberer) -> None:
    rememberer.client.set_principal("gina", roles=["memory-governance"])
    run_id, proposal = proposed(rememberer)
    assert isinstance(proposal.arguments, dict)

    rememberer.client.edit(
        proposal.approval_id, {**proposal.arguments, "value": "Greet in Japanese"}, by="gina"
    )
    rememberer.go_on(run_id)

    assert rememberer.memories() == {"greeting": "Greet in Japanese"}
    assert rememberer.violations() == []


def test_the_audit_sees_one_that_nobody_approved(rememberer: Rememberer) -> None:
    rememberer.client.set_principal("gina", roles=["memory-governance"])
    run_id, proposal = proposed(rememberer)
    rememberer.client.approve(proposal.approval_id, by="gina")
    rememberer.go_on(run_id)
    with rememberer.database.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("UPDATE celeriac.memory_decisions SET approval_id = 'a0'")

    assert [(each.invariant, each.run_id) for each in audit(rememberer.database)] == [(6, run_id)]
