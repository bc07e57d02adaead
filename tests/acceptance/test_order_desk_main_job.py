"""The main job as a user does it: orders through the command line, while workers are killed.

The evidence is what others keep: the rows of the run as the command line shows them, the rows of
the shop, and the ledger of the notification service, which knows nothing of workers.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celeriac_storage.database import Database
from examples import order_desk as desk
from tests.notifications import NotificationService, notification_service
from tests.processes import Processes
from tests.waiting import eventually

pytestmark = [pytest.mark.processes, pytest.mark.crash]

ORDER = {"order_id": "O-1001", "sku": "A-7", "quantity": 1}
SHIPPED = "Order O-1001, 1 of A-7: DEDUCTED, 9 left in stock, and the customer was notified."
AGENTS = str(desk.__file__)

# The steps of an order: each call is asked for in one and made in the next.
DEDUCT, NOTIFY, LAST = 3, 5, 6


class OrderDesk:
    """The example on servers of its own: two workers, a scheduler, a notification service."""

    def __init__(
        self, database: Database, processes: Processes, service: NotificationService
    ) -> None:
        self.database = database
        self.processes = processes
        self.service = service
        processes.environment |= {
            "CELERIAC_AGENTS": AGENTS,
            "ORDER_DESK_NOTIFY_URL": service.address,
        }
        desk.prepare(database.url)
        desk._engine(database.url).dispose()

    def open(self, test_points: str = "") -> None:
        """Start the scheduler and two workers; either dies that comes first to an armed point."""
        self.processes.start_scheduler()
        for _ in range(2):
            self.processes.start_worker(AGENTS, test_points=test_points)

    def try_celeriac(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "celeriac.cli.main", *arguments],
            env=self.processes.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def celeriac(self, *arguments: str, exit_code: int = 0) -> Any:
        """What the command prints as JSON."""
        done = self.try_celeriac(*arguments, "--json")
        assert done.returncode == exit_code, done.stderr
        return json.loads(done.stdout)

    def order(self, exit_code: int = 0, **changed: object) -> Any:
        """Run an order through and return how it ended."""
        text = json.dumps({**ORDER, **changed})
        return self.celeriac("run", "order-desk", "--input", text, "--wait", exit_code=exit_code)

    @property
    def workers_killed(self) -> int:
        ends = [process.wait() for process in self.processes.started if not process.is_running]
        return ends.count(-signal.SIGKILL)

    @property
    def living_workers(self) -> list[str]:
        listed = self.try_celeriac("workers", "--json")
        assert listed.returncode == 0, listed.stderr
        workers = map(json.loads, listed.stdout.splitlines())
        return [worker["worker_id"] for worker in workers if worker["alive"]]

    @property
    def stock(self) -> int:
        with self.database.connect() as connection:
            query = "SELECT quantity FROM order_desk.stock WHERE sku = 'A-7'"
            return int(connection.exec_driver_sql(query).scalar_one())

    @property
    def deductions(self) -> list[tuple[str, str]]:
        """Order and run of each deduction in the shop's own log."""
        with self.database.connect() as connection:
            rows = connection.exec_driver_sql(
                "SELECT order_id, run_id FROM order_desk.side_effect_log"
                " WHERE step = 'deduct_inventory' ORDER BY at"
            )
            return [(row[0], row[1]) for row in rows]


@pytest.fixture
def shop(database: Database, processes: Processes, tmp_path: Path) -> Iterator[OrderDesk]:
    with notification_service(tmp_path / "ledger.sqlite3") as service:
        yield OrderDesk(database, processes, service)


def assert_done_once(shop: OrderDesk, run: dict[str, Any]) -> None:
    """Nothing of the order was lost, and nothing was done twice."""
    assert (run["status"], run["result"]) == ("completed", SHIPPED)
    assert [step["step"] for step in run["steps"]] == list(range(LAST + 1))
    assert [(effect["tool"], effect["state"]) for effect in run["effects"]] == [
        ("check_inventory", "committed"),
        ("deduct_inventory", "committed"),
        ("notify_shipped", "committed"),
    ]
    assert shop.stock == 9
    assert shop.deductions == [("O-1001", run["run_id"])]
    key = run["effects"][-1]["key"]
    assert shop.service.requests == [(key, ORDER)]
    assert shop.service.deliveries == [(key, ORDER)]
    assert shop.celeriac("audit") == {"ok": True, "violations": []}


# features: 002-22, 002-23, 002-25, 002-26
@pytest.mark.parametrize(
    ("point", "deaths"),
    [
        # Deducted, in a transaction that is still open.
        (f"act.after_tool@{DEDUCT}", 1),
        # Deducted for good; the next step is queued, but not published.
        (f"step.after_commit@{DEDUCT}", 0),
        # About to record that the notification is attempted.
        (f"act.before_in_flight@{NOTIFY}", 1),
        # Notified for good; the next step is queued, but not published.
        (f"step.after_commit@{NOTIFY}", 0),
    ],
)
def test_an_order_goes_through_while_a_worker_is_killed(
    shop: OrderDesk, point: str, deaths: int
) -> None:
    shop.open(test_points=f"{point}=kill")

    run = shop.order()

    assert shop.workers_killed == 1
    assert shop.processes.reached(point)
    assert run["deaths"] == deaths  # of workers that held a step of this run
    assert run["epoch"] == len(run["steps"]) + deaths  # each step claimed once, or once more
    assert run["steps"][-1]["worker_id"] in shop.living_workers
    assert_done_once(shop, run)


# features: 002-20
def test_a_worker_killed_after_the_notification_leaves_the_answer_to_a_person(
    shop: OrderDesk,
) -> None:
    shop.open(test_points=f"act.after_call@{NOTIFY}=kill")

    run = shop.order(exit_code=1)

    assert shop.workers_killed == 1
    assert run["status"] == "needs_attention"
    (unknown,) = (effect for effect in run["effects"] if effect["state"] == "unknown")
    assert (unknown["tool"], unknown["attempt"]) == ("notify_shipped", 1)
    assert shop.service.requests == [(unknown["key"], ORDER)]

    run_id = run["run_id"]
    shop.celeriac("resolve", run_id, unknown["call_id"], "--committed", '{"status": "SENT"}')
    ended = eventually(
        lambda: shop.celeriac("show", run_id),
        until=lambda run: run["status"] == "completed",
        deadline_seconds=30,
        what="the run completed",
    )
    assert_done_once(shop, ended)


def test_the_second_run_for_an_order_finds_it_done(shop: OrderDesk) -> None:
    shop.open()

    first, second = shop.order(), shop.order()

    assert first["result"] == SHIPPED
    assert second["status"] == "completed"
    assert second["result"] == SHIPPED.replace("DEDUCTED", "ALREADY_DONE")
    assert shop.stock == 9
    assert shop.deductions == [("O-1001", first["run_id"])]
    assert shop.service.deliveries == [(first["effects"][-1]["key"], ORDER)]


def test_an_order_for_too_much_and_one_for_nothing_known_are_told_so(shop: OrderDesk) -> None:
    shop.open()

    too_much = shop.order(order_id="O-1002", quantity=11)
    unknown = shop.order(order_id="O-1003", sku="B-1")

    assert too_much["result"] == (
        "Order O-1002, 11 of A-7: OUT_OF_STOCK, 10 in stock, so nobody was notified."
    )
    assert unknown["result"] == (
        "Order O-1003, 1 of B-1: UNKNOWN_SKU, there is no such item, so nobody was notified."
    )
    assert shop.stock == 10
    assert shop.deductions == []
    assert shop.service.requests == []


def test_an_order_that_makes_no_sense_never_becomes_a_run(shop: OrderDesk) -> None:
    order = json.dumps({"order_id": "O-1001", "quantity": 0})

    refused = shop.try_celeriac("run", "order-desk", "--input", order, "--wait")

    assert refused.returncode == 1
    assert "quantity: 0 is less than 1" in refused.stderr
    assert "sku: required, but missing" in refused.stderr
    assert refused.stdout == ""
    assert shop.try_celeriac("runs", "--json").stdout == ""
