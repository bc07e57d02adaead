"""The example's payment service in a process of its own, and what its ledger says."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tests.outside_services import OutsideService, running

PAID_CENTS = 100_00


@dataclass(frozen=True)
class Refund:
    refund_id: str
    key: str
    cents: int


class PaymentService(OutsideService):
    """A running service, whose `requests` are for refunds."""

    def paid_order(self) -> str:
        """An order that nobody has asked about before, with `PAID_CENTS` paid for it."""
        order_id = f"ORDER-{uuid4().hex[:12]}"
        payment = {"order_id": order_id, "cents": PAID_CENTS}
        self.client.post("/payments", json=payment).raise_for_status()
        return order_id

    def refunds(self, order_id: str) -> list[Refund]:
        """Each time that money went back for the order, oldest first."""
        return [
            Refund(f"R-{row['number']}", row["idempotency_key"], row["cents"])
            for row in self.rows("refunds")
            if row["order_id"] == order_id
        ]

    def keys_asked_with(self, order_id: str) -> list[str]:
        """The key of each request to refund something of the order, oldest first."""
        return [key for key, body in self.requests if body["order_id"] == order_id]


@contextmanager
def payment_service(ledger: Path) -> Iterator[PaymentService]:
    """Start the service on a free port with the ledger in file `ledger`, and end it afterwards."""
    with running("payment_service.py", ledger) as address:
        yield PaymentService(address)
