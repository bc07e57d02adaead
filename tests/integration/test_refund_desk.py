"""The refund desk on a real PostgreSQL and a real payment service, and what people decide there."""

# features: 000-12, 000-24, 000-25, 000-26, 000-32, 000-33, 000-34, 000-35
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from celeriac import Client
from celeriac.codec import JsonValue
from celeriac.errors import CeleriacError, InvalidArguments, InvalidInput, NotAllowed
from celeriac.ids import RunId
from celeriac.reports import Approval, Run
from celeriac_storage import waking
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from celeriac_tasks.step import take_step
from examples import refund_desk as desk
from tests.payments import PaymentService, payment_service
from tests.worker_in_process import Worker

REFUND_STEP = 3
NO_AMOUNTS = [
    "-1",
    "0",
    "0.00",
    "NaN",
    "Infinity",
    "abc",
    "",
    "18.505",
    "1e2",
    "1_000",
    "\uff11\uff12",
    None,
]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PaymentService]:
    with payment_service(tmp_path / "payments.sqlite3") as service:
        monkeypatch.setenv("REFUND_DESK_PAYMENT_URL", service.address)
        yield service


class RefundDesk:
    """The agent, its people, and workers in this process."""

    def __init__(self, database: Database, broker_url: str, service: PaymentService) -> None:
        self.service = service
        self.database = database
        self.client = Client(database.url)
        self._broker_url = broker_url
        self.worker = self.new_worker()
        self.client.set_principal("alice", roles=["refunds"], by="root")
        self.order_id = service.paid_order()
        with database.begin() as connection:
            connection.exec_driver_sql(desk.TABLES)

    def new_worker(self) -> Worker:
        worker = Worker(self.database.url, self._broker_url, [desk.refund_desk])
        worker.process.start()
        return worker

    def propose(self, amount: str = "18.50") -> tuple[RunId, Approval]:
        started = self.client.start("refund-desk", {"order_id": self.order_id, "amount": amount})
        self.go_on(started.run_id)
        (proposal,) = self.client.approvals(run_id=started.run_id, by="alice")
        return started.run_id, proposal

    def go_on(self, run_id: RunId) -> Run:
        for _ in range(10):
            if self.worker.row(run_id).status != "queued":
                return self.client.get(run_id)
            self.worker.step(run_id)
        raise AssertionError(f"the run is still queued: {self.worker.row(run_id)}")

    def wake(self) -> None:
        """The timers' time, and the payment service's, has come."""
        with self.database.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.exec_driver_sql(
                "UPDATE celeriac.effect_attempts SET at = at - interval '1 hour'"
            )
            connection.exec_driver_sql(
                "UPDATE celeriac.runs SET wake_at = now() WHERE phase = 'waiting_timer'"
            )
        with self.database.connect() as connection:
            waking.take_due_timers(connection)

    @property
    def refunded_cents(self) -> list[int]:
        return [refund.cents for refund in self.service.refunds(self.order_id)]

    @property
    def letters(self) -> list[str]:
        with self.database.connect() as connection:
            rows = connection.exec_driver_sql("SELECT body FROM refund_desk.letters")
            return [row[0] for row in rows]

    def close(self) -> None:
        self.client.close()
        self.worker.process.stop()


@pytest.fixture
def refunds(database: Database, broker_url: str, service: PaymentService) -> Iterator[RefundDesk]:
    refunds = RefundDesk(database, broker_url, service)
    yield refunds
    refunds.close()
    assert audit(database) == []


def test_an_approved_refund_is_made_as_it_was_proposed_and_the_customer_is_told(
    refunds: RefundDesk,
) -> None:
    run_id, proposal = refunds.propose()
    assert refunds.refunded_cents == []
    assert proposal.blast_radius == (
        f"18.50 EUR leave our account for the customer of order {refunds.order_id}"
    )

    refunds.client.approve(proposal.approval_id, by="alice", hash=proposal.arguments_hash)
    run = refunds.go_on(run_id)

    (refund,) = refunds.service.refunds(refunds.order_id)
    assert (refund.key, refund.cents) == (proposal.idempotency_key, 1850)
    assert run.result == (
        f"Order {refunds.order_id}: 18.50 EUR were refunded as {refund.refund_id}."
    )
    assert refunds.letters == [f"We have refunded 18.50 EUR of your order {refunds.order_id}."]


def test_another_worker_that_shares_no_object_goes_on_from_the_rows(refunds: RefundDesk) -> None:
    run_id, proposal = refunds.propose()
    refunds.worker.process.stop()

    refunds.client.approve(proposal.approval_id, by="alice")
    refunds.worker = refunds.new_worker()

    assert refunds.go_on(run_id).status == "completed"
    assert refunds.refunded_cents == [1850]


def test_a_rejected_refund_moves_no_money_and_cannot_be_approved_any_more(
    refunds: RefundDesk,
) -> None:
    run_id, proposal = refunds.propose()

    refunds.client.reject(proposal.approval_id, "not our fault", by="alice")
    run = refunds.go_on(run_id)
    with pytest.raises(CeleriacError):
        refunds.client.approve(proposal.approval_id, by="alice")

    assert "not our fault" in str(run.result)
    assert refunds.service.requests == []
    assert refunds.letters == []


def test_an_edit_is_checked_like_a_proposal_and_what_is_executed_is_the_edit(
    refunds: RefundDesk,
) -> None:
    run_id, proposal = refunds.propose()
    for amount in NO_AMOUNTS:
        edited = {"order_id": refunds.order_id, "amount": amount}
        with pytest.raises(InvalidArguments):
            refunds.client.edit(proposal.approval_id, edited, by="alice")
    with pytest.raises(InvalidArguments):
        refunds.client.edit(proposal.approval_id, {"amount": "12.50"}, by="alice")
    assert refunds.client.approval(proposal.approval_id).status == "pending"

    less = {"order_id": refunds.order_id, "amount": "12.50"}
    decided = refunds.client.edit(proposal.approval_id, less, by="alice")
    refunds.go_on(run_id)

    assert refunds.refunded_cents == [1250]
    assert refunds.letters == [f"We have refunded 12.50 EUR of your order {refunds.order_id}."]
    shown = [refunds.client.approval(each) for each in (proposal.approval_id, decided.approval_id)]
    assert [each.arguments for each in shown] == [{**less, "amount": "18.50"}, less]


def test_twenty_approvals_and_twenty_workers_at_once_make_one_refund(refunds: RefundDesk) -> None:
    run_id, proposal = refunds.propose()

    def approve(_: int) -> object:
        try:
            return refunds.client.approve(proposal.approval_id, by="alice").status
        except CeleriacError:
            return "refused"

    with ThreadPoolExecutor(20) as people:
        answers = list(people.map(approve, range(20)))
    workers = [refunds.worker, refunds.new_worker()]
    with ThreadPoolExecutor(20) as slots:
        for number in range(20):
            slots.submit(take_step, workers[number % 2].process, run_id, REFUND_STEP)
    run = refunds.go_on(run_id)
    workers[1].process.stop()

    assert Counter(answers) == {"approved": 1, "refused": 19}
    assert run.status == "completed"
    assert refunds.service.keys_asked_with(refunds.order_id) == [proposal.idempotency_key]
    assert [effect.key for effect in run.effects if effect.tool == "issue_refund"] == [
        proposal.idempotency_key
    ]


def test_an_amount_that_is_no_money_never_becomes_a_run(refunds: RefundDesk) -> None:
    for amount in NO_AMOUNTS:
        request: dict[str, JsonValue] = {"order_id": refunds.order_id, "amount": amount}
        with pytest.raises(InvalidInput):
            refunds.client.start("refund-desk", request)
        with pytest.raises(InvalidArguments):
            desk.issue_refund.validate(request)
    assert refunds.client.runs() == []


def test_more_than_is_left_is_not_even_proposed(refunds: RefundDesk) -> None:
    started = refunds.client.start(
        "refund-desk", {"order_id": refunds.order_id, "amount": "100.01"}
    )

    run = refunds.go_on(started.run_id)

    assert run.result == (
        f"Order {refunds.order_id}: nothing was refunded, only 100.00 EUR are left."
    )
    assert refunds.client.approvals(run_id=started.run_id) == []


def test_a_service_that_is_not_there_was_certainly_not_asked(
    refunds: RefundDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, proposal = refunds.propose()
    refunds.client.approve(proposal.approval_id, by="alice")
    monkeypatch.setenv("REFUND_DESK_PAYMENT_URL", "http://127.0.0.1:1")

    waiting = refunds.go_on(run_id)

    assert (waiting.status, waiting.phase) == ("paused", "waiting_timer")
    assert refunds.worker.effect(run_id, proposal.call_id).state == "not_done"


# features: 004-39
@pytest.mark.parametrize("loses_answer", [False, True])
def test_a_refund_is_made_up_for_once_and_stays_on_record(
    refunds: RefundDesk, loses_answer: bool
) -> None:
    run_id, proposal = refunds.propose()
    refunds.client.approve(proposal.approval_id, by="alice")
    before = refunds.go_on(run_id)
    with pytest.raises(NotAllowed):
        refunds.client.rollback(run_id, by="mallory")
    refunds.service.misbehave(drops_response=loses_answer)

    rollback = refunds.client.rollback(run_id, by="alice").run_id
    refunds.go_on(RunId(rollback))
    if loses_answer:
        refunds.service.misbehave()
        refunds.wake()
    undone = refunds.go_on(RunId(rollback))

    assert undone.status == "completed", undone
    assert undone.result == {
        "undone": [],
        "compensated": [
            {"call_id": "4.0", "tool": "tell_customer"},
            {"call_id": "2.0", "tool": "issue_refund"},
        ],
        "not_undone": [],
    }
    key = f"{proposal.idempotency_key}:undo"
    assert [row["idempotency_key"] for row in refunds.service.rows("cancellations")] == [key]
    assert refunds.refunded_cents == [1850], "on record, and cancelled"
    assert "does not hold" in refunds.letters[-1]
    assert [each.state for each in refunds.client.get(run_id).effects] == [
        each.state for each in before.effects
    ]


# The service ------------------------------------------------------------------------------------


def ask(service: PaymentService, key: str, order_id: str, cents: object) -> httpx2.Response:
    return httpx2.post(
        f"{service.address}/refunds",
        json={"order_id": order_id, "cents": cents},
        headers={"Idempotency-Key": key},
    )


def test_the_service_refunds_once_per_key_and_never_more_than_was_paid(
    service: PaymentService,
) -> None:
    order_id = service.paid_order()

    first, again = ask(service, "a", order_id, 6000), ask(service, "a", order_id, 6000)
    other_body = ask(service, "a", order_id, 1)
    too_much = ask(service, "b", order_id, 4001)

    assert [first.status_code, again.status_code] == [201, 200]
    assert first.json()["refund_id"] == again.json()["refund_id"]
    assert [other_body.status_code, too_much.status_code] == [422, 422]
    assert [refund.cents for refund in service.refunds(order_id)] == [6000]


def test_the_service_takes_whole_positive_cents_only(service: PaymentService) -> None:
    order_id = service.paid_order()
    for cents in (-1, 0, 1.5, True, "100", None):
        assert ask(service, "a", order_id, cents).status_code == 422
    assert service.requests == []


def test_the_service_knows_its_faults(service: PaymentService) -> None:
    for fault in ({"nope": True}, {"pretends": 1}, {"applies_after_seconds": "1"}):
        assert httpx2.post(f"{service.address}/fault", json=fault).status_code == 400


def test_the_service_cancels_a_refund_once(service: PaymentService) -> None:
    order_id = service.paid_order()
    ask(service, "a", order_id, 6000)

    def cancel(key: str, refund_key: str) -> int:
        return httpx2.post(
            f"{service.address}/cancellations",
            json={"refund_key": refund_key},
            headers={"Idempotency-Key": key},
        ).status_code

    assert [cancel("u", "a"), cancel("u", "a"), cancel("v", "a"), cancel("w", "nosuch")] == [
        201, 200, 422, 404,
    ]  # fmt: skip
    assert ask(service, "b", order_id, 10_000).status_code == 201, "the money is there again"
