"""A stand-in for somebody else's notification service, with a ledger of its own.

    python examples/notification_service.py --port 8025 --ledger ledger.sqlite3

The first line it prints is its address. It keeps two tables: `requests`, a row for every time it
was asked to notify, and `deliveries`, a row for every notification that a customer got. What
happened out here can so be counted without asking the side that made the requests.

- `POST /notifications` with an `Idempotency-Key` delivers once per key. The same key again gets the
  first answer, marked `"replayed": true`; the same key with another body is refused (422).
- `GET /ledger` returns both tables.
- `POST /fault` takes `{"delay_seconds": 2.5, "drop_response": true}`. From then on it delivers as
  ever, but answers late, or not at all: the connection just closes.
"""

import json
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from examples.outside_service import Faults, Handler, Ledger, RequestError, serve
else:  # a program's own folder is where Python looks first
    from outside_service import Faults, Handler, Ledger, RequestError, serve

PORT = 8025

TABLES = """
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    idempotency_key TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS deliveries (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    idempotency_key TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class NotificationFaults(Faults):
    """How this service misbehaves, after it has delivered."""

    delay_seconds: float = 0.0
    drop_response: bool = False


class Notifications(Ledger):
    """What was asked and what was delivered."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, TABLES, ("requests", "deliveries"))

    def deliver(self, key: str, body: str) -> dict[str, Any]:
        """Record the request, and deliver unless this key was delivered before."""
        with self.transaction() as file:
            file.execute("INSERT INTO requests (idempotency_key, body) VALUES (?, ?)", (key, body))
            is_new = file.execute(
                "INSERT INTO deliveries (idempotency_key, body) VALUES (?, ?)"
                " ON CONFLICT DO NOTHING",
                (key, body),
            ).rowcount
            delivery = file.execute(
                "SELECT number, at, body FROM deliveries WHERE idempotency_key = ?", (key,)
            ).fetchone()
        if delivery["body"] != body:
            raise RequestError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"key {key} was used before for another notification: {delivery['body']}",
            )
        return {
            "notification_id": f"N-{delivery['number']}",
            "delivered_at": delivery["at"],
            "replayed": not is_new,
        }


class NotificationHandler(Handler):
    def post(self, path: str, body: dict[str, Any]) -> None:
        if path != "/notifications":
            raise RequestError(HTTPStatus.NOT_FOUND, f"there is no {path}")
        ledger, faults = self.server.ledger, self.faults
        assert isinstance(ledger, Notifications)
        assert isinstance(faults, NotificationFaults)
        # Sorted, so that the same notification is the same text.
        answer = ledger.deliver(self.idempotency_key(), json.dumps(body, sort_keys=True))
        time.sleep(faults.delay_seconds)
        if not faults.drop_response:
            self.answer(HTTPStatus.OK if answer["replayed"] else HTTPStatus.CREATED, answer)


if __name__ == "__main__":
    serve("A notification service", PORT, NotificationHandler, Notifications, NotificationFaults())
