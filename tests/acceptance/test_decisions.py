"""A refund from the proposal to the letter, by processes that share nothing but the database."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from celeriac.ids import DEFAULT_QUEUE
from celeriac_storage.database import Database, driver_of, libpq_url
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


STRANGER = """
import sys, psycopg
with psycopg.connect(sys.argv[1]) as connection:
    for (row,) in connection.execute(sys.argv[2]):
        print(row)
"""
GIVEN = """
SELECT jsonb_build_object('input', input, 'phase', phase, 'step', step, 'messages', message_count,
    'schema', definition -> 'input_schema')::text
FROM celeriac.runs JOIN celeriac.agents USING (agent)
"""
PROPOSED = """
SELECT concat_ws(' ', phase, effect.tool, effect.arguments::text, proposal.arguments::text)
FROM celeriac.runs JOIN celeriac.effects AS effect USING (run_id)
JOIN celeriac.approvals AS proposal USING (run_id, call_id)
"""
LET_FIVE_HOURS_PASS = """
SET LOCAL session_replication_role = replica;
DO $$
DECLARE moment record;
BEGIN
    FOR moment IN
        SELECT table_name, column_name FROM information_schema.columns
        JOIN information_schema.tables USING (table_schema, table_name)
        WHERE table_schema = 'celeriac' AND table_type = 'BASE TABLE'
            AND data_type = 'timestamp with time zone'
    LOOP
        EXECUTE format('UPDATE celeriac.%1$I SET %2$I = %2$I - make_interval(hours => 5)',
            moment.table_name, moment.column_name);
    END LOOP;
END $$
"""
"""Everything in the database happened five hours earlier than it did."""


def seen_by_a_stranger(desk: RefundTerminal, query: str) -> list[str]:
    """What a process finds by SQL that has nothing of ours, and never saw the run."""
    command = [sys.executable, "-c", STRANGER, libpq_url(desk.database.url), query]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


# features: 000-01 (before the first step)
def test_what_a_run_was_given_stands_in_its_row_before_any_worker_has_done_a_step(
    desk: RefundTerminal, service: PaymentService
) -> None:
    (worker,) = desk.open(workers=1, test_points="step.after_claim@0=kill")
    order = {"order_id": service.paid_order(), "amount": "18.50"}
    run_id = desk.begin("refund-desk", order)
    desk.wait_for_death(worker)

    (found,) = map(json.loads, seen_by_a_stranger(desk, GIVEN))

    jsonschema.validate(found["input"], found.pop("schema"))
    assert found == {"input": order, "phase": "waiting_model", "step": 0, "messages": 1}
    desk.start_worker()
    (proposal,) = desk.shown(run_id, status="paused", phase="waiting_approval")["approvals"]
    assert proposal["arguments"] == order


# features: 000-09, 000-29, 000-31, 000-32, 004-48
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
    (before,) = seen_by_a_stranger(desk, PROPOSED)

    for process in desk.processes.started:
        process.kill_group()
    broker_of_its_own.kill()
    with desk.database.begin() as connection:
        driver_of(connection).execute(LET_FIVE_HOURS_PASS)
    assert seen_by_a_stranger(desk, PROPOSED) == [before]
    arguments = json.dumps({"amount": "18.50", "order_id": order_id})
    assert before == f"waiting_approval issue_refund {arguments} {arguments}"
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
