"""The order desk of `examples/`, with a notification service whose ledger counts from outside."""

from typing import Any

from celeriac_storage.database import Database
from examples import order_desk as desk
from tests.acceptance.terminal import Terminal
from tests.notifications import NotificationService
from tests.processes import Processes

ORDER = {"order_id": "O-1001", "sku": "A-7", "quantity": 1}
SHIPPED = "Order O-1001, 1 of A-7: DEDUCTED, 9 left in stock, and the customer was notified."

# The steps of an order: each call is asked for in one and made in the next.
CHECK, DEDUCT, NOTIFY, LAST = 1, 3, 5, 6


class Shop(Terminal):
    """Ten A-7 are on the shelf."""

    agents = str(desk.__file__)

    def __init__(
        self, database: Database, processes: Processes, service: NotificationService
    ) -> None:
        super().__init__(database, processes)
        self.service = service
        processes.environment |= {
            "CELERIAC_AGENTS": self.agents,
            "ORDER_DESK_NOTIFY_URL": service.address,
        }
        desk.prepare(database.url)
        desk._engine(database.url).dispose()

    def order(self, exit_code: int = 0, **changed: object) -> Any:
        """Run an order through and return how it ended."""
        return self.run("order-desk", {**ORDER, **changed}, exit_code=exit_code)

    @property
    def stock(self) -> int:
        ((quantity,),) = self.query("SELECT quantity FROM order_desk.stock WHERE sku = 'A-7'")
        return int(quantity)

    @property
    def deductions(self) -> list[tuple[str, str]]:
        """Order and run of each deduction in the shop's own log."""
        rows = self.query(
            "SELECT order_id, run_id FROM order_desk.side_effect_log"
            " WHERE step = 'deduct_inventory' ORDER BY at"
        )
        return [(order_id, run_id) for order_id, run_id in rows]

    def assert_done_once(self, run: dict[str, Any]) -> None:
        """Nothing of the order was lost, and nothing was done twice."""
        assert (run["status"], run["result"]) == ("completed", SHIPPED)
        assert [step["step"] for step in run["steps"]] == list(range(LAST + 1))
        assert [(effect["tool"], effect["state"]) for effect in run["effects"]] == [
            ("check_inventory", "committed"),
            ("deduct_inventory", "committed"),
            ("notify_shipped", "committed"),
        ]
        assert self.stock == 9
        assert self.deductions == [("O-1001", run["run_id"])]
        key = run["effects"][-1]["key"]
        assert self.service.requests == [(key, ORDER)]
        assert self.service.deliveries == [(key, ORDER)]
        self.assert_sound()
