"""A refund from the proposal to the letter, by processes that share nothing but the database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from celeriac.ids import DEFAULT_QUEUE
from celeriac_storage.database import Database
from examples import refund_desk
from tests.acceptance.terminal import Terminal
from tests.crash.nursery import Nursery
from tests.crash.servers import RedisServer, redis_server
from tests.crash.stack import started_processes
from tests.payments import PaymentService, payment_service
from tests.servers import TestBroker


class RefundTerminal(Terminal):
    agents = refund_desk.__name__


@pytest.fixture
def broker_of_its_own(tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with redis_server(folder) as server:
        yield server


@pytest.fixture
def service(tmp_path: Path) -> Iterator[PaymentService]:
    with payment_service(tmp_path / "payments.sqlite3") as service:
        yield service


@pytest.fixture
def desk(
    database: Database,
    broker_of_its_own: RedisServer,
    service: PaymentService,
    tmp_path: Path,
    nursery: Nursery,
) -> Iterator[RefundTerminal]:
    broker = TestBroker("redis", broker_of_its_own.url, DEFAULT_QUEUE)
    with started_processes(database, broker, tmp_path, nursery) as processes:
        processes.environment["REFUND_DESK_PAYMENT_URL"] = service.address
        terminal = RefundTerminal(database, processes)
        terminal.execute(refund_desk.TABLES)
        yield terminal


# features: 000-29, 000-31, 000-32, 004-48
def test_a_paused_refund_outlives_all_processes_and_the_broker(
    desk: RefundTerminal, service: PaymentService, broker_of_its_own: RedisServer
) -> None:
    order_id = service.paid_order()
    desk.celeriac("principals", "alice", "--role", "refunds")
    desk.open(workers=1)
    run_id = desk.begin("refund-desk", {"order_id": order_id, "amount": "18.50"})
    paused = desk.shown(run_id, status="paused", phase="waiting_approval")
    (proposal,) = paused["approvals"]
    assert desk.query("SELECT claim_token FROM celeriac.runs") == [(None,)]

    for process in desk.processes.started:
        process.kill_group()
    broker_of_its_own.kill()
    decided = desk.celeriac("approve", proposal["approval_id"], "--as", "alice")
    assert (decided["status"], service.refunds(order_id)) == ("approved", [])
    broker_of_its_own.start()
    desk.open(workers=1)
    run = desk.completed(run_id)

    (refund,) = service.refunds(order_id)
    assert (refund.cents, refund.key) == (18_50, proposal["idempotency_key"])
    workers = [step["worker_id"] for step in run["steps"]]
    assert len(workers) == 7
    assert len(set(workers[:3])) == len(set(workers[3:])) == 1
    assert workers[0] != workers[3]
    assert desk.query("SELECT order_id FROM refund_desk.letters") == [(order_id,)]
    decisions = desk.query("SELECT reviewer, decision FROM celeriac.approval_decisions")
    assert decisions == [("alice", "approve")]
    desk.assert_sound()
