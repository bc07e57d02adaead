"""Many who decide at once, at the last moment, or about anything: one of them at most is heeded."""

# features: 000-26, 000-35, 004-47
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celeriac import Approval, Client
from celeriac.errors import CeleriacError, Conflict, DecisionRefused, InvalidArguments
from celeriac.ids import DEFAULT_TENANT, ApprovalId, UserId
from celeriac_storage import approvals, expiring
from celeriac_storage.database import Database
from tests.review_desk import REFUND, Desk, Ledger, refund_tool, values

AT_ONCE = 50


@pytest.fixture
def desk(database: Database, broker_url: str) -> Iterator[Desk]:
    ledger = Ledger()
    tools = [refund_tool(ledger, Approval(expires_seconds=3600))]
    desk = Desk(database, broker_url, ledger, tools, [("refund", REFUND)])
    yield desk
    desk.close()


def at_once(deeds: list[Callable[[], object]]) -> list[str]:
    """Do all of them at the same moment; "done", or the name of what each raised."""
    together = threading.Barrier(len(deeds))

    def do(deed: Callable[[], object]) -> str:
        together.wait(30)
        try:
            deed()
        except CeleriacError as refused:
            return type(refused).__name__
        return "done"

    with ThreadPoolExecutor(len(deeds)) as people:
        return list(people.map(do, deeds))


def test_of_fifty_who_decide_at_once_one_is_heeded(desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()
    clients = [Client(desk.database.url) for _ in range(5)]

    def deed(number: int) -> Callable[[], object]:
        client, by, id_ = clients[number % 5], f"user-{number}", proposal.approval_id
        return [
            lambda: client.approve(id_, by=by),
            lambda: client.edit(id_, values(amount=f"{number}.00"), by=by),
            lambda: client.reject(id_, "no", by=by),
            lambda: client.cancel(run_id, by=by),
        ][number % 4]

    outcomes = Counter(at_once([deed(number) for number in range(1, AT_ONCE + 1)]))
    for client in clients:
        client.close()
    row = desk.go_on(run_id)

    decided = desk.rows("SELECT status FROM celeriac.approvals WHERE status = 'approved'")
    decisions = desk.rows(
        "SELECT FROM celeriac.approval_decisions WHERE approval_id = %s", proposal.approval_id
    )
    assert len(decisions) <= 1
    assert len(desk.ledger.entries) <= len(decided) <= 1
    assert row.status in ("completed", "cancelled")
    assert outcomes["done"] + outcomes["DecisionRefused"] + outcomes["Conflict"] == AT_ONCE
    assert desk.violations() == []


def test_two_reads_of_one_person_at_once_are_recorded_once(desk: Desk) -> None:
    run_id = desk.worker.start("desk")
    desk.go_on(run_id)
    alice = UserId("alice")
    with desk.database.connect() as connection:
        shown = approvals.of_run(connection, run_id)
        # Both have looked before either has written.
        first, second = (approvals.not_yet_shown(connection, shown, alice) for _ in range(2))

    for (proposal,) in (first, second):
        with desk.database.begin() as connection:
            approvals.surface(connection, DEFAULT_TENANT, proposal, alice)

    assert desk.trail(shown[0].approval_id) == [("alice", "approval.shown", "allowed")]
    assert desk.events(run_id).count("approval.surfaced") == 1


def test_twenty_approvals_at_once_execute_it_once(desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()

    outcomes = Counter(
        at_once(
            [partial(desk.client.approve, proposal.approval_id, by=f"user-{n}") for n in range(20)]
        )
    )

    assert outcomes == {"done": 1, "DecisionRefused": 19}
    assert desk.go_on(run_id).status == "completed"
    assert desk.ledger.count("refund") == 1
    assert desk.violations() == []


def test_a_quorum_reached_by_many_at_once_executes_it_once(
    database: Database, broker_url: str
) -> None:
    ledger = Ledger()
    desk = Desk(
        database,
        broker_url,
        ledger,
        [refund_tool(ledger, Approval(quorum=3))],
        [("refund", REFUND)],
    )
    run_id, (proposal,) = desk.propose()

    outcomes = Counter(
        at_once(
            [partial(desk.client.approve, proposal.approval_id, by=f"user-{n}") for n in range(10)]
        )
    )

    assert outcomes == {"done": 3, "DecisionRefused": 7}
    desk.go_on(run_id)
    assert ledger.count("refund") == 1
    assert desk.violations() == []
    desk.close()


def expire(database: Database, approval_id: ApprovalId) -> None:
    for _ in range(200):
        with database.begin() as connection:
            if expiring.expire(connection, approval_id):
                return


def approve_in_time(client: Client, approval_id: ApprovalId) -> None:
    """As late as can be: the first one that is refused says that it is over."""
    for _ in range(200):
        try:
            client.approve(approval_id, by="alice")
        except DecisionRefused:
            return


def test_at_the_moment_of_expiry_it_is_either_approved_or_expired(desk: Desk) -> None:
    for _ in range(10):
        desk.asked.clear()
        run_id, (proposal,) = desk.propose()
        desk.damage(
            "UPDATE celeriac.approvals SET expires_at = clock_timestamp() + interval '20 ms'"
            f" WHERE approval_id = '{proposal.approval_id}'"
        )
        before = desk.ledger.count("refund")

        at_once(
            [
                partial(expire, desk.database, proposal.approval_id),
                partial(approve_in_time, desk.client, proposal.approval_id),
            ]
        )
        row = desk.go_on(run_id)

        # What was approved may have run out before the call: then it is proposed again.
        status = desk.client.approval(proposal.approval_id).status
        executed = desk.ledger.count("refund") - before
        assert (status, executed) in [("expired", 0), ("approved", 1), ("revoked", 0)]
        assert (row.status == "paused") == (status == "revoked")
        assert desk.violations() == []


def test_a_revocation_during_the_decisions_of_others_never_deadlocks(desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()
    desk.client.set_principal("alice", roles=["a"])

    def revoke() -> None:
        for number in range(20):
            desk.client.set_principal("alice", roles=[f"r{number}"])

    def go_on() -> None:
        desk.client.approve(proposal.approval_id, by="alice")
        desk.go_on(run_id)

    assert at_once([revoke, go_on]) == ["done", "done"]
    assert desk.row(run_id).status == "completed"


AMOUNTS = st.one_of(
    st.decimals(min_value=-1000, max_value=1000, places=2).map(str),
    st.decimals(allow_nan=True, allow_infinity=True).map(str),
    st.text(alphabet="0123456789.-+eE_ \uff11\u0660", max_size=12),
    st.integers(min_value=-(10**25), max_value=10**25),
    st.floats(),
    st.booleans(),
    st.none(),
    st.lists(st.integers(), max_size=2),
)
EDITS = st.one_of(
    st.fixed_dictionaries(
        {"amount": AMOUNTS},
        optional={
            "order_id": st.one_of(st.text(max_size=8), st.integers(), st.none()),
            "note": st.one_of(st.text(max_size=8), st.integers()),
            "extra": st.integers(),
        },
    ),
    st.text(max_size=20),
)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(edit=EDITS)
def test_an_edit_is_taken_exactly_if_the_tools_own_code_takes_it(desk: Desk, edit: Any) -> None:
    """And whatever was taken is executed as it was written, or not at all."""
    desk.asked.clear()
    run_id, (proposal,) = desk.propose()
    before = desk.ledger.count("refund")

    try:
        desk.client.edit(proposal.approval_id, edit, by="alice")
    except InvalidArguments:
        with pytest.raises(InvalidArguments):
            desk.agent.tools[0].validate({} if isinstance(edit, str) else edit)
        assert desk.client.approval(proposal.approval_id).status == "pending"
        assert desk.ledger.count("refund") == before
        desk.client.cancel(run_id)
        return
    expected = desk.agent.tools[0].validate(edit)
    desk.go_on(run_id)

    assert desk.ledger.count("refund") == before + 1
    assert desk.ledger.amounts()[-1] == str(expected["amount"])


def test_deciding_again_after_any_ending_is_a_conflict(desk: Desk) -> None:
    run_id, (proposal,) = desk.propose()
    desk.client.approve(proposal.approval_id, by="alice")
    desk.go_on(run_id)

    attempts: list[Callable[[], object]] = [
        lambda: desk.client.approve(proposal.approval_id, by="bob"),
        lambda: desk.client.edit(proposal.approval_id, values(amount="1"), by="bob"),
        lambda: desk.client.reject(proposal.approval_id, "late", by="bob"),
    ]
    for again in attempts:
        with pytest.raises(Conflict):
            again()

    assert desk.ledger.amounts() == ["80.00"]
