"""The example's notification service in a process of its own, and what its ledger says."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.outside_services import OutsideService, running


class NotificationService(OutsideService):
    """A running service, whose `requests` are for notifications."""

    @property
    def deliveries(self) -> list[tuple[str, dict[str, Any]]]:
        """Key and body of each notification that a customer got, oldest first."""
        return self.keyed_rows("deliveries")


@contextmanager
def notification_service(ledger: Path) -> Iterator[NotificationService]:
    """Start the service on a free port with the ledger in file `ledger`, and end it afterwards."""
    with running("notification_service.py", ledger) as address:
        yield NotificationService(address)
