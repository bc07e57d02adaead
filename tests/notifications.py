"""The example's notification service in a process of its own, and what its ledger says."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

SERVICE = Path(__file__).parent.parent / "examples" / "notification_service.py"


class NotificationService:
    """A running service. Its ledger is read over HTTP: from outside, as its owner would."""

    def __init__(self, address: str) -> None:
        self.address = address

    def misbehave(self, *, delay_seconds: float = 0.0, drop_response: bool = False) -> None:
        """From now on answer late, or not at all, after delivering."""
        fault = {"delay_seconds": delay_seconds, "drop_response": drop_response}
        httpx.post(f"{self.address}/fault", json=fault).raise_for_status()

    @property
    def requests(self) -> list[tuple[str, dict[str, Any]]]:
        """Key and body of each notification it was asked for, oldest first."""
        return self._rows("requests")

    @property
    def deliveries(self) -> list[tuple[str, dict[str, Any]]]:
        """Key and body of each notification that a customer got, oldest first."""
        return self._rows("deliveries")

    def _rows(self, table: str) -> list[tuple[str, dict[str, Any]]]:
        ledger = httpx.get(f"{self.address}/ledger").raise_for_status().json()
        return [(row["idempotency_key"], json.loads(row["body"])) for row in ledger[table]]


@contextmanager
def notification_service(ledger: Path) -> Iterator[NotificationService]:
    """Start the service on a free port with the ledger in file `ledger`, and end it afterwards."""
    process = subprocess.Popen(
        [sys.executable, str(SERVICE), "--port", "0", "--ledger", str(ledger)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, f"the notification service ended at once, with {process.wait()}"
        yield NotificationService(address)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
