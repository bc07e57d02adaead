"""Deciding proposals at the console: what is shown is what is decided, by who may, once."""

# features: 000-28, 000-39, 004-45, 004-46, 004-47, 004-49, 004-50, 004-52
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from celeriac import Approval, Rule, When
from celeriac.ids import RunId
from celeriac.reports import Approval as Proposal
from celeriac.states import RunStatus
from celeriac_storage.database import Database
from tests.api.server import Api
from tests.console.visitor import Form, Visitor, Visitors
from tests.review_desk import Desk, Ledger, refund_tool

NOTE = "first line\r\nsecond \u202e line"  # which a form would send back otherwise
CALL = {"order_id": "O-1", "amount": "80.00", "note": NOTE}
POLICY = Approval(
    roles=["cashier"],
    rules=[Rule(When("amount", ">", "500"), roles=["cashier"], quorum=2)],
    immutable=["order_id"],
    blast_radius="{amount} leave our account for order {order_id}",
    intent="Refund {amount}",
    permissions_touched=["payments:write"],
    data_lineage=["orders"],
)


class Scene:
    """A refund that waits for a cashier, such as carl or cora."""

    def __init__(self, api: Api, desk: Desk, visitors: Visitors) -> None:
        self.api = api
        self.desk = desk
        self.run_id, (self.proposal,) = desk.propose()
        self.carl = visitors.signed_in("carl")
        self.cora = visitors.signed_in("cora")
        self.olga = visitors.signed_in("olga", "operator")  # sees all, and is no cashier
        self.bob = visitors.signed_in("bob")
        self.path = f"/approvals/{self.proposal.approval_id}"

    def form(self, decision: str, visitor: Visitor | None = None) -> Form:
        return (visitor or self.carl).decision_form(self.proposal.approval_id, decision)

    def facts(self) -> list[tuple[Any, ...]]:
        """All that a decision could have changed."""
        return [
            *self.api.rows("SELECT approval_id, status FROM celeriac.approvals ORDER BY 1"),
            *self.api.rows("SELECT reviewer FROM celeriac.approval_decisions ORDER BY 1"),
            *self.api.rows("SELECT run_id, status, last_event_seq FROM celeriac.runs"),
            *self.api.rows("SELECT call_id, state, version FROM celeriac.effects"),
            *self.api.rows("SELECT key FROM celeriac.idempotency_keys"),
        ]

    def status(self, proposal: Proposal | None = None) -> str:
        shown = self.desk.client.approval((proposal or self.proposal).approval_id, by="viewer")
        return shown.status

    def finish(self, run_id: RunId | None = None) -> None:
        assert self.desk.go_on(run_id or self.run_id).status == RunStatus.COMPLETED
        assert self.desk.violations() == []


@pytest.fixture
def scene(api: Api, database: Database, broker_url: str, visitors: Visitors) -> Iterator[Scene]:
    ledger = Ledger()
    desk = Desk(database, broker_url, ledger, [refund_tool(ledger, POLICY)], [("refund", CALL)])
    for name in ("carl", "cora"):
        desk.client.set_principal(name, roles=["cashier"])
    yield Scene(api, desk, visitors)
    desk.close()


def test_the_page_shows_the_whole_proposal_and_who_was_shown_it_is_recorded(scene: Scene) -> None:
    page = scene.carl.read(scene.path)

    for shown in (
        "Refund 80.00", "80.00 leave our account for order O-1", "payments:write", "orders",
        "cashier", "out of band", scene.proposal.idempotency_key, scene.proposal.arguments_hash,
        "O-1", "first line", "0 of 1 approval", "viewer",
    ):  # fmt: skip
        assert shown in page, shown
    ((at, rendering),) = scene.api.rows(
        "SELECT at, detail ->> 'rendering_hash' FROM celeriac.audit"
        " WHERE action = 'approval.shown' AND actor = 'carl' AND object = %s",
        scene.proposal.approval_id,
    )
    assert rendering in page
    scene.carl.read(scene.path)
    assert scene.desk.trail(scene.proposal.approval_id).count(
        ("carl", "approval.shown", "allowed")
    ) == 1  # fmt: skip
    scene.carl.send(scene.form("approve"))
    assert scene.api.rows(
        "SELECT reviewer, encode(rendering_hash, 'hex'), shown_at FROM celeriac.approval_decisions"
    ) == [("carl", rendering, at)]


def test_the_inbox_lists_what_one_may_see_and_shows_nobody_a_proposal(scene: Scene) -> None:
    listed = scene.proposal.approval_id

    assert listed in scene.carl.read("/approvals")
    assert "not yours to decide" in scene.olga.read("/approvals")
    assert listed not in scene.bob.read("/approvals")
    assert [actor for actor, _, _ in scene.desk.trail(listed)] == ["viewer"]


def test_approving_lets_the_run_go_on_and_a_second_click_does_nothing(scene: Scene) -> None:
    form = scene.form("approve")

    with ThreadPoolExecutor(4) as pool:
        responses = list(pool.map(lambda _: scene.carl.send(form), range(4)))

    assert {(each.status_code, each.headers["location"]) for each in responses} == {
        (303, scene.path)
    }
    assert "This is approved" in scene.carl.read(scene.path)
    scene.finish()
    assert scene.desk.ledger.amounts() == ["80.00"]
    assert scene.api.rows("SELECT reviewer, decision FROM celeriac.approval_decisions") == [
        ("carl", "approve")
    ]


@pytest.mark.parametrize("csrf", [None, "", "0" * 64])
def test_a_form_without_the_sessions_own_token_is_refused(scene: Scene, csrf: str | None) -> None:
    form = scene.form("approve")
    before = scene.facts()

    response = scene.carl.send(form, csrf=csrf)

    assert response.status_code == 403
    assert "nothing was done" in response.text
    assert scene.facts() == before
    assert scene.carl.send(form).status_code == 303  # it was that alone


def test_the_token_of_another_session_is_refused(scene: Scene) -> None:
    form = scene.form("approve")
    before = scene.facts()

    response = scene.carl.send(form, csrf=scene.form("approve", scene.cora).fields["csrf"])

    assert response.status_code == 403
    assert scene.facts() == before


@pytest.mark.parametrize("header", ["https://evil.example", "null", ""])
def test_a_form_from_a_page_of_another_site_is_refused(scene: Scene, header: str) -> None:
    form = scene.form("approve")
    before = scene.facts()

    scene.carl.http.headers["Origin"] = header
    response = scene.carl.send(form)

    assert response.status_code == 403
    assert scene.facts() == before


def test_a_form_that_is_no_form_is_refused(scene: Scene) -> None:
    at = f"{scene.path}/decision"
    form = scene.form("approve")
    before = scene.facts()

    told = [
        scene.carl.http.post(at, json=form.fields),
        scene.carl.http.post(at, content=b"csrf=a&csrf=b", headers=FORM),
        scene.carl.http.post(at, content=b"csrf=%ff", headers=FORM),
        scene.carl.http.post(at, content=b"csrf=%00", headers=FORM),
        scene.carl.http.post(at, content=b"a=1&" * 2000, headers=FORM),
        scene.carl.http.post(at, content=b"a=" + b"1" * 2_000_000, headers=FORM),
        scene.carl.send(form, decision="maybe"),
        scene.carl.send(form, idempotency_key="a b"),
    ]

    assert [each.status_code for each in told] == [415, 400, 400, 400, 400, 413, 422, 400]
    assert scene.facts() == before


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def test_a_reviewer_without_the_role_is_told_so_and_refused(scene: Scene) -> None:
    page = scene.olga.read(scene.path)
    form = scene.form("approve")
    csrf = scene.olga.form("/runs", "/sign-out").fields["csrf"]

    response = scene.olga.send(form, csrf=csrf)

    assert "You cannot decide this: olga has the roles none" in page
    assert "Approve as it is shown" not in page
    assert response.status_code == 403
    assert "olga has the roles none" in response.text
    assert scene.status() == "pending"
    assert scene.api.rows("SELECT reviewer FROM celeriac.approval_decisions") == []
    assert ("olga", "approval.approve", "denied") in scene.desk.trail(scene.proposal.approval_id)
    assert scene.carl.send(form).status_code == 303


def test_who_may_neither_decide_nor_see_it_is_refused_and_recorded(scene: Scene) -> None:
    assert scene.bob.get(scene.path).status_code == 403

    assert ("bob", "http.show_approval", scene.proposal.approval_id) in scene.api.denials()


def test_another_tenants_proposal_and_run_are_not_there(scene: Scene, visitors: Visitors) -> None:
    rival = visitors.signed_in("carl", "admin", tenant="rival")
    csrf = rival.form("/runs", "/sign-out").fields["csrf"]
    form = scene.form("approve")
    before = scene.facts()

    told = [
        rival.get(scene.path),
        rival.get(f"/runs/{scene.run_id}"),
        rival.get(f"/runs/{scene.run_id}/events"),
        rival.send(form, csrf=csrf),
        rival.send(scene.olga.form(f"/runs/{scene.run_id}", f"/runs/{scene.run_id}/cancel"),
                   csrf=csrf),
    ]  # fmt: skip

    assert [each.status_code for each in told] == [404] * 5
    assert scene.facts() == before
    assert scene.run_id not in rival.read("/runs")
    assert scene.run_id not in rival.read("/workers")
    assert len(scene.api.denials()) == 5


def test_an_edit_that_the_tool_does_not_take_is_told_and_can_be_mended(scene: Scene) -> None:
    form = scene.form("edit")

    refused = scene.carl.send(form, **{"argument.amount": "lots"})

    assert refused.status_code == 422
    assert "amount" in refused.text
    assert ">\nlots</textarea>" in refused.text  # as it was typed
    assert f'hx-get="{scene.path}"' in refused.text  # and not where the form was sent to
    assert scene.status() == "pending"
    edited = scene.carl.send(form, **{"argument.amount": "40.00", "reason": "half of it was used"})
    assert edited.status_code == 303
    page = scene.carl.read(edited.headers["location"])
    assert "<del>80.00</del>" in page
    assert "<ins>40.00</ins>" in page
    assert "This is approved" in page
    assert edited.headers["location"] in scene.carl.read(scene.path)
    scene.finish()
    ((_, done, _),) = scene.desk.ledger.entries
    assert (str(done["amount"]), done["note"]) == ("40.00", NOTE)


def test_an_edit_may_not_touch_what_is_immutable(scene: Scene) -> None:
    response = scene.carl.send(scene.form("edit"), **{"argument.order_id": "O-2"})

    assert response.status_code == 422
    assert "may not be changed" in response.text
    assert scene.status() == "pending"


def test_an_edit_can_raise_the_review_and_the_other_one_sees_what_changed(scene: Scene) -> None:
    edited = scene.carl.send(scene.form("edit"), **{"argument.amount": "600.00"})

    at = edited.headers["location"]
    page = scene.carl.read(at)
    assert "1 of 2 approvals: carl" in page
    assert "You have decided; others have to as well" in page
    decided = scene.cora.send(scene.cora.decision_form(at.rpartition("/")[2], "approve"))
    assert decided.status_code == 303
    scene.finish()
    assert scene.desk.ledger.amounts() == ["600.00"]


def test_a_rejection_needs_a_reason_and_the_model_is_told_it(scene: Scene) -> None:
    form = scene.form("reject")

    refused = scene.carl.send(form, reason=" ")
    rejected = scene.carl.send(form, reason="the order is too old")

    assert refused.status_code == 422
    assert rejected.status_code == 303
    assert "the order is too old" in scene.carl.read(scene.path)
    scene.finish()
    assert "the order is too old" in scene.desk.shown
    assert scene.desk.ledger.entries == []


def test_a_stale_page_is_told_of_the_conflict_and_does_nothing(scene: Scene) -> None:
    stale = scene.form("approve", scene.cora)
    scene.carl.send(scene.form("edit"), **{"argument.amount": "40.00"})
    before = scene.facts()

    response = scene.cora.send(stale)

    assert response.status_code == 409
    assert "cannot be decided" in response.text
    assert scene.facts() == before


def test_another_hash_than_the_one_that_is_proposed_is_a_conflict(scene: Scene) -> None:
    form = scene.form("approve")

    response = scene.carl.send(form, arguments_hash="0" * 64)

    assert response.status_code == 409
    assert scene.status() == "pending"


def test_a_decision_for_a_run_that_was_cancelled_is_a_conflict(scene: Scene) -> None:
    form = scene.form("approve")
    scene.desk.client.cancel(scene.run_id)

    response = scene.carl.send(form)

    assert response.status_code == 409
    assert scene.desk.ledger.entries == []


def test_a_proposal_that_is_not_there_is_a_page_that_says_so(scene: Scene) -> None:
    for path in ("/approvals/a00000000000000000", "/approvals/%00", "/approvals/a b"):
        response = scene.carl.get(path)
        assert response.status_code == 404
        assert "There is no such proposal" in response.text
