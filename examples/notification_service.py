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

import argparse
import json
import sqlite3
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MAX_BODY_BYTES = 64 * 1024
MAX_KEY_CHARACTERS = 255

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
ROWS = {
    "requests": "SELECT * FROM requests ORDER BY number",
    "deliveries": "SELECT * FROM deliveries ORDER BY number",
}


class RequestError(Exception):
    """The request cannot be used; nothing was delivered."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Faults:
    """How this service misbehaves, after it has delivered."""

    delay_seconds: float = 0.0
    drop_response: bool = False

    def __post_init__(self) -> None:
        if type(self.delay_seconds) not in (int, float) or type(self.drop_response) is not bool:
            raise TypeError(f"delay_seconds is a number and drop_response a boolean, not {self}")


class Ledger:
    """What was asked and what was delivered, on disk before anybody is answered."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._file.row_factory = sqlite3.Row
        self._file.execute("PRAGMA synchronous = FULL")  # fsync at every commit
        self._file.executescript(TABLES)

    def deliver(self, key: str, body: str) -> dict[str, Any]:
        """Record the request, and deliver unless this key was delivered before."""
        with self._lock, self._transaction():
            self._file.execute(
                "INSERT INTO requests (idempotency_key, body) VALUES (?, ?)", (key, body)
            )
            is_new = self._file.execute(
                "INSERT INTO deliveries (idempotency_key, body) VALUES (?, ?)"
                " ON CONFLICT DO NOTHING",
                (key, body),
            ).rowcount
            delivery = self._file.execute(
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

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Both tables, oldest row first."""
        with self._lock:
            return {
                table: [dict(row) for row in self._file.execute(query)]
                for table, query in ROWS.items()
            }

    def _transaction(self) -> sqlite3.Connection:
        self._file.execute("BEGIN IMMEDIATE")
        return self._file  # as a context it commits, or rolls back what raised


class NotificationService(ThreadingHTTPServer):
    """Listens on loopback, a thread for each request."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, ledger: Ledger) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.ledger = ledger
        self.faults = Faults()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: NotificationService

    def do_GET(self) -> None:
        if self.path == "/ledger":
            self._answer(HTTPStatus.OK, self.server.ledger.rows())
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"error": f"there is no {self.path}"})

    def do_POST(self) -> None:
        try:
            match self.path:
                case "/notifications":
                    self._notify()
                case "/fault":
                    self._misbehave()
                case _:
                    raise RequestError(HTTPStatus.NOT_FOUND, f"there is no {self.path}")
        except RequestError as refused:
            self._answer(refused.status, {"error": str(refused)})

    def _notify(self) -> None:
        key = self.headers.get("Idempotency-Key", "").strip()
        if not 0 < len(key) <= MAX_KEY_CHARACTERS:
            raise RequestError(
                HTTPStatus.BAD_REQUEST,
                f"an Idempotency-Key of 1 to {MAX_KEY_CHARACTERS} characters is required",
            )
        # Sorted, so that the same notification is the same text.
        answer = self.server.ledger.deliver(key, json.dumps(self._body(), sort_keys=True))
        faults = self.server.faults
        time.sleep(faults.delay_seconds)
        if not faults.drop_response:
            self._answer(HTTPStatus.OK if answer["replayed"] else HTTPStatus.CREATED, answer)

    def _misbehave(self) -> None:
        try:
            self.server.faults = Faults(**self._body())
        except TypeError as error:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"no such fault: {error}") from None
        self._answer(HTTPStatus.OK, vars(self.server.faults))

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length", 0))
        if length > MAX_BODY_BYTES:
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body has {length} bytes, more than {MAX_BODY_BYTES}",
            )
        try:
            body = json.loads(self.rfile.read(length))
        except ValueError as error:
            raise RequestError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {error}") from None
        if not isinstance(body, dict):
            raise RequestError(HTTPStatus.BAD_REQUEST, "the body must be a JSON object")
        return body

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        """Quiet: the ledger is the log."""


def main() -> None:
    parser = argparse.ArgumentParser(description="A notification service with a ledger of its own.")
    parser.add_argument("--port", type=int, default=8025, help="0: any free one")
    parser.add_argument("--ledger", type=Path, required=True, help="its SQLite file")
    arguments = parser.parse_args()
    service = NotificationService(arguments.port, Ledger(arguments.ledger))
    print(service.address, flush=True)
    service.serve_forever()


if __name__ == "__main__":
    main()
