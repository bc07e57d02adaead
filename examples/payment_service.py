"""A stand-in for somebody else's payment service, with a ledger of its own.

    python examples/payment_service.py --port 8026 --ledger payments.sqlite3

The first line it prints is its address. It keeps four tables: `payments`, what customers have
paid; `requests`, a row for every time it was asked for a refund; `refunds`, a row for every time
money went back; `cancellations`, a row for every refund that was cancelled after all. Amounts are
integer cents.

- `POST /payments` with `{"order_id": "ORDER-42", "cents": 10000}` records a payment, one per order.
- `POST /refunds` with an `Idempotency-Key` and `{"order_id": "ORDER-42", "cents": 1850}` refunds
  once per key. The same key again gets the first answer, marked `"replayed": true`; the same key
  with another body is refused (422), and so is more than was paid and not yet refunded.
- `POST /cancellations` with an `Idempotency-Key` and `{"refund_key": KEY}` cancels the refund made
  under that key, once; `GET /cancellations?key=KEY` lists the cancellations made under a key.
- `GET /refunds?key=KEY` lists the refunds made under a key, `GET /payments?order_id=ORDER-42` tells
  what was paid for an order and refunded of it.
- `GET /ledger` returns the tables.
- `POST /fault` takes any of the fields of `PaymentFaults`, and the rest is as it should be; with a
  `key` besides, only requests and look-ups with that key are treated so.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from examples.outside_service import Faults, Handler, Ledger, RequestError, serve
else:  # a program's own folder is where Python looks first
    from outside_service import Faults, Handler, Ledger, RequestError, serve

PORT = 8026

TABLES = """
CREATE TABLE IF NOT EXISTS payments (
    order_id TEXT PRIMARY KEY,
    cents INTEGER NOT NULL CHECK (cents > 0)
);
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    idempotency_key TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS refunds (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    idempotency_key TEXT NOT NULL,  -- not unique: it may be told not to honour keys
    order_id TEXT NOT NULL REFERENCES payments,
    cents INTEGER NOT NULL CHECK (cents > 0),
    body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS cancellations (
    refund INTEGER PRIMARY KEY REFERENCES refunds (number),
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    idempotency_key TEXT NOT NULL UNIQUE
);
"""


@dataclass(frozen=True)
class PaymentFaults(Faults):
    """How this service misbehaves."""

    honours_keys: bool = True  # else every request is another refund
    drops_response: bool = False  # does it, and closes the connection without an answer
    pretends: bool = False  # answers as ever, and refunds nothing
    applies_after_seconds: float = 0.0  # accepts at once (202), and refunds later
    answers_after_seconds: float = 0.0  # refunds at once, and answers later
    is_down: bool = False  # answers everything with 503, look-ups included


class Payments(Ledger):
    """What was paid, asked and refunded."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, TABLES, ("payments", "requests", "refunds", "cancellations"))

    def pay(self, order_id: str, cents: int) -> None:
        with self.transaction() as file:
            file.execute(
                "INSERT INTO payments VALUES (?, ?) ON CONFLICT DO NOTHING", (order_id, cents)
            )

    def payment(self, order_id: str) -> dict[str, Any]:
        """What was paid and refunded, in cents."""
        with self.transaction() as file:
            return dict(self._payment(file, order_id))

    def record_request(self, key: str, body: str) -> None:
        with self.transaction() as file:
            file.execute("INSERT INTO requests (idempotency_key, body) VALUES (?, ?)", (key, body))

    def refund(self, key: str, order_id: str, cents: int, *, honours_key: bool) -> dict[str, Any]:
        """Refund, unless this key has done so before; the refund, and whether it was the first."""
        body = json.dumps({"order_id": order_id, "cents": cents}, sort_keys=True)
        with self.transaction() as file:
            before = self._refunds(file, key) if honours_key else []
            if before:
                if before[0]["body"] != body:
                    raise RequestError(
                        HTTPStatus.UNPROCESSABLE_ENTITY,
                        f"key {key} was used before for another refund: {before[0]['body']}",
                    )
                return {**_told(before[0]), "replayed": True}
            payment = self._payment(file, order_id)
            if cents > payment["paid"] - payment["refunded"]:
                raise RequestError(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    f"{cents} cents are more than what is left of order {order_id}: "
                    f"{payment['paid']} paid, {payment['refunded']} refunded",
                )
            file.execute(
                "INSERT INTO refunds (idempotency_key, order_id, cents, body) VALUES (?, ?, ?, ?)",
                (key, order_id, cents, body),
            )
            return {**_told(self._refunds(file, key)[-1]), "replayed": False}

    def refunds(self, key: str) -> list[dict[str, Any]]:
        """The refunds made under a key, oldest first."""
        with self.transaction() as file:
            return [_told(row) for row in self._refunds(file, key)]

    def cancel(self, key: str, refund_key: str) -> dict[str, Any]:
        """Cancel the refund made under `refund_key`, unless this key has done so before."""
        with self.transaction() as file:
            if before := self._cancellations(file, key):
                return {**before[0], "replayed": True}
            refunds = self._refunds(file, refund_key)
            if not refunds:
                raise RequestError(
                    HTTPStatus.NOT_FOUND, f"no refund was made under the key {refund_key}"
                )
            try:
                file.execute(
                    "INSERT INTO cancellations (refund, idempotency_key) VALUES (?, ?)",
                    (refunds[0]["number"], key),
                )
            except sqlite3.IntegrityError:
                raise RequestError(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    f"refund R-{refunds[0]['number']} is cancelled already",
                ) from None
            return {**self._cancellations(file, key)[0], "replayed": False}

    def cancellations(self, key: str) -> list[dict[str, Any]]:
        """The cancellations made under a key: one at most."""
        with self.transaction() as file:
            return self._cancellations(file, key)

    def _cancellations(self, file: sqlite3.Connection, key: str) -> list[dict[str, Any]]:
        query = "SELECT refund, at FROM cancellations WHERE idempotency_key = ?"
        rows = file.execute(query, (key,)).fetchall()
        return [{"refund_id": f"R-{row['refund']}", "cancelled_at": row["at"]} for row in rows]

    def _payment(self, file: sqlite3.Connection, order_id: str) -> sqlite3.Row:
        row = file.execute(
            "SELECT order_id, cents AS paid, (SELECT coalesce(sum(cents), 0) FROM refunds"
            " WHERE refunds.order_id = payments.order_id"
            " AND number NOT IN (SELECT refund FROM cancellations)) AS refunded"
            " FROM payments WHERE order_id = ?",
            (order_id,),
        ).fetchone()
        if row is None:
            raise RequestError(HTTPStatus.NOT_FOUND, f"nothing was paid for order {order_id}")
        return row  # type: ignore[no-any-return]  # its row factory is sqlite3.Row

    def _refunds(self, file: sqlite3.Connection, key: str) -> list[sqlite3.Row]:
        query = "SELECT * FROM refunds WHERE idempotency_key = ? ORDER BY number"
        return file.execute(query, (key,)).fetchall()


def _told(refund: sqlite3.Row) -> dict[str, Any]:
    return {
        "refund_id": f"R-{refund['number']}",
        "order_id": refund["order_id"],
        "cents": refund["cents"],
        "refunded_at": refund["at"],
    }


class PaymentHandler(Handler):
    def get(self, path: str, query: Mapping[str, str]) -> None:
        self._refuse_if_down()
        match path, dict(query):
            case "/refunds", {"key": key}:
                self.answer(HTTPStatus.OK, {"refunds": self._ledger.refunds(key)})
            case "/cancellations", {"key": key}:
                self.answer(HTTPStatus.OK, {"cancellations": self._ledger.cancellations(key)})
            case "/payments", {"order_id": order_id}:
                self.answer(HTTPStatus.OK, self._ledger.payment(order_id))
            case _:
                super().get(self.path, query)

    def post(self, path: str, body: dict[str, Any]) -> None:
        self._refuse_if_down()
        if path == "/cancellations":
            self._cancel(body)
            return
        order_id, cents = body.get("order_id"), body.get("cents")
        if not isinstance(order_id, str) or type(cents) is not int or cents <= 0:
            raise RequestError(
                HTTPStatus.UNPROCESSABLE_ENTITY,
                f"send an order_id and a positive whole number of cents, not {body}",
            )
        match path:
            case "/payments":
                self._ledger.pay(order_id, cents)
                self.answer(HTTPStatus.OK, self._ledger.payment(order_id))
            case "/refunds":
                self._refund(order_id, cents)
            case _:
                raise RequestError(HTTPStatus.NOT_FOUND, f"there is no {path}")

    def _cancel(self, body: dict[str, Any]) -> None:
        refund_key = body.get("refund_key")
        if not isinstance(refund_key, str):
            raise RequestError(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"send the refund_key of a refund, not {body}"
            )
        done = self._ledger.cancel(self.idempotency_key(), refund_key)
        if not self._faults.drops_response:
            self.answer(HTTPStatus.OK if done["replayed"] else HTTPStatus.CREATED, done)

    def _refund(self, order_id: str, cents: int) -> None:
        faults, key = self._faults, self.idempotency_key()
        self._ledger.record_request(key, json.dumps({"order_id": order_id, "cents": cents}))

        def apply() -> dict[str, Any]:
            return self._ledger.refund(key, order_id, cents, honours_key=faults.honours_keys)

        if faults.pretends:
            self.answer(HTTPStatus.CREATED, {"refund_id": "R-0", "replayed": False})
        elif faults.applies_after_seconds:
            later = threading.Timer(faults.applies_after_seconds, apply)
            later.daemon = True
            later.start()
            self.answer(HTTPStatus.ACCEPTED, {"refund_id": None, "replayed": False})
        else:
            done = apply()
            time.sleep(faults.answers_after_seconds)
            if not faults.drops_response:
                self.answer(HTTPStatus.OK if done["replayed"] else HTTPStatus.CREATED, done)

    def _refuse_if_down(self) -> None:
        if self._faults.is_down:
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "down")

    @property
    def _ledger(self) -> Payments:
        assert isinstance(self.server.ledger, Payments)
        return self.server.ledger

    @property
    def _faults(self) -> PaymentFaults:
        assert isinstance(self.faults, PaymentFaults)
        return self.faults


if __name__ == "__main__":
    serve("A payment service", PORT, PaymentHandler, Payments, PaymentFaults())
