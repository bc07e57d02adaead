"""A database, a broker, and the processes that a crash test starts and kills on them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any
from uuid import uuid4

from celeriac.client import Client
from celeriac.reports import Run
from celeriac.states import EffectState, RunStatus
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from celeriac_storage.resolving import NotDone, TookEffect
from examples import order_desk as desk
from tests.crash import agents
from tests.notifications import NotificationService
from tests.processes import Nursery, Processes, TestProcess
from tests.servers import TestBroker
from tests.waiting import eventually

AGENTS = agents.__name__
DONE_SECONDS = 60.0
STOCK = 1000


class Stack:
    """What the tests say to it: start workers, start runs, and look at the rows."""

    def __init__(self, database: Database, broker: TestBroker, processes: Processes) -> None:
        self.database = database
        self.broker = broker
        self.processes = processes
        # Without a broker: the scheduler publishes, as for a client that died after its commit.
        self.client = Client(database.url)
        with database.begin() as connection:
            connection.exec_driver_sql(agents.CREATE_TABLES)

    def start_worker(self, *, test_points: str = "", **settings: object) -> TestProcess:
        return self.processes.start_worker(AGENTS, test_points=test_points, **settings)

    def start_workers(
        self, count: int, *, test_points: str = "", **settings: object
    ) -> list[TestProcess]:
        return self.processes.start_workers(count, AGENTS, test_points=test_points, **settings)

    def start_scheduler(self, *, test_points: str = "", **settings: object) -> TestProcess:
        return self.processes.start_scheduler(test_points=test_points, **settings)

    def start(self, agent: str, value: object = "go", *, thread_id: str | None = None) -> str:
        return self.client.start(agent, value, thread_id=thread_id).run_id

    def run(self, run_id: str) -> Run:
        return self.client.get(run_id)

    def wait(self, run_id: str) -> Run:
        """The run when it has ended or needs attention."""
        return self.client.wait(run_id, timeout_seconds=DONE_SECONDS)

    def wait_until(self, run_id: str, *, step: int, status: RunStatus = RunStatus.RUNNING) -> Run:
        return eventually(
            lambda: self.run(run_id),
            until=lambda run: (run.step, run.status) == (step, status),
            deadline_seconds=DONE_SECONDS,
            what=f"run {run_id} {status} at step {step}",
        )

    def wait_for_call(self, run_id: str, tool: str, times: int = 1) -> None:
        """Until the tool has begun so often, whatever came of it."""
        eventually(
            lambda: self.calls(run_id, tool),
            until=lambda calls: len(calls) >= times,
            deadline_seconds=DONE_SECONDS,
            what=f"call {times} of {tool}",
        )

    def completed(self, run_id: str) -> Run:
        run = self.wait(run_id)
        assert run.status is RunStatus.COMPLETED, run
        return run

    def open_gate(self, gate: str) -> None:
        self.query("INSERT INTO crash.open_gates VALUES (%s) RETURNING gate", gate)

    def execute(self, sql: str) -> None:
        with self.database.begin() as connection:
            connection.exec_driver_sql(sql)

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self.database.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(sql, values)]

    def tally(self, run_id: str) -> list[str]:
        rows = self.query("SELECT label FROM crash.tally WHERE run_id = %s ORDER BY ctid", run_id)
        return [label for (label,) in rows]

    def calls(self, run_id: str, tool: str) -> list[tuple[int, int]]:
        """Process and number of neighbours of each call that began, oldest first."""
        rows = self.query(
            "SELECT pid, neighbours FROM crash.calls WHERE run_id = %s AND tool = %s ORDER BY at",
            run_id,
            tool,
        )
        return [(pid, neighbours) for pid, neighbours in rows]

    def holder(self, run_id: str, among: Sequence[TestProcess]) -> TestProcess:
        """The process that holds the run's claim."""
        ((pid,),) = self.query(
            "SELECT pid FROM celeriac.runs JOIN celeriac.workers USING (worker_id)"
            " WHERE run_id = %s AND status = 'running'",
            run_id,
        )
        (found,) = (process for process in among if pid in process.pids)
        return found

    def verdicts(self) -> list[str]:
        """How each worker that was declared dead was found out."""
        rows = self.query("SELECT verdict FROM celeriac.workers WHERE dead_at IS NOT NULL")
        return sorted(verdict for (verdict,) in rows)

    def events(self, run_id: str) -> list[str]:
        return [event.type for event in self.client.events(run_id)]

    def violations(self) -> list[str]:
        return [f"{found.run_id}: {found.detail}" for found in audit(self.database)]


class OrderDesk(Stack):
    """The example on it, with a notification service whose ledger counts from outside."""

    def __init__(
        self,
        database: Database,
        broker: TestBroker,
        processes: Processes,
        service: NotificationService,
    ) -> None:
        super().__init__(database, broker, processes)
        self.service = service
        processes.environment["ORDER_DESK_NOTIFY_URL"] = service.address
        desk.prepare(database.url)
        desk._engine(database.url).dispose()
        self.query("UPDATE order_desk.stock SET quantity = %s RETURNING quantity", STOCK)

    def order(self) -> str:
        """Start a run for an order that nobody has placed before."""
        order = {"order_id": f"O-{uuid4().hex[:12]}", "sku": "A-7", "quantity": 1}
        return self.start("order-desk", order)

    def settle_by_ledger(self, run: Run) -> bool:
        """Look at the service's ledger as a person would, and say what it says; was it done?"""
        (unknown,) = (effect for effect in run.effects if effect.state is EffectState.UNKNOWN)
        is_done = unknown.key in self.deliveries(run)
        resolution = TookEffect({"status": "SENT"}) if is_done else NotDone()
        self.client.resolve(run.run_id, unknown.call_id, resolution)
        return is_done

    def assert_done_once(self, run: Run) -> None:
        """Nothing of the order was lost, and nothing was done twice."""
        assert run.status is RunStatus.COMPLETED, run
        assert [step.step for step in run.steps] == list(range(7))
        assert [(effect.tool, effect.state) for effect in run.effects] == [
            ("check_inventory", EffectState.COMMITTED),
            ("deduct_inventory", EffectState.COMMITTED),
            ("notify_shipped", EffectState.COMMITTED),
        ]
        assert isinstance(run.input, dict)
        assert self.query(
            "SELECT run_id FROM order_desk.side_effect_log"
            " WHERE step = 'deduct_inventory' AND order_id = %s",
            run.input["order_id"],
        ) == [(run.run_id,)]
        assert self.deliveries(run) == [run.effects[-1].key]
        answers = self.query(
            "SELECT step, count(*) FROM celeriac.model_calls WHERE run_id = %s"
            " GROUP BY step ORDER BY step",
            run.run_id,
        )
        assert answers == [(step, 1) for step in (0, 2, 4, 6)]  # committed once each
        deducted = self.query(
            "SELECT count(*) FROM order_desk.side_effect_log WHERE step = 'deduct_inventory'"
        )
        assert deducted == [(STOCK - self.stock,)]
        assert self.violations() == []

    def deliveries(self, run: Run) -> list[str]:
        """The key of each notification that the customer of this order got."""
        return [key for key, order in self.service.deliveries if order == run.input]

    @property
    def stock(self) -> int:
        ((quantity,),) = self.query("SELECT quantity FROM order_desk.stock WHERE sku = 'A-7'")
        return int(quantity)


def count_killed(processes: Sequence[TestProcess]) -> int:
    """How many of these have ended by SIGKILL, and no other way."""
    ends = [process.wait() for process in processes if not process.is_running]
    assert set(ends) <= {-SIGKILL}
    return len(ends)


@contextmanager
def started_processes(
    database: Database, broker: TestBroker, folder: Path, nursery: Nursery
) -> Iterator[Processes]:
    processes = Processes(database, broker, folder, nursery)
    try:
        yield processes
    finally:
        processes.close()
