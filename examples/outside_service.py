"""What the stand-ins for other people's services have in common: HTTP, a ledger, faults on request.

Each is a program of its own (`notification_service.py`, `payment_service.py`). It listens on
loopback unless told otherwise, prints its address as its first line, and keeps a ledger on disk, so
that what happened out here can be counted without asking the side that made the requests.
"""

import argparse
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

MAX_BODY_BYTES = 64 * 1024
MAX_KEY_CHARACTERS = 255


class RequestError(Exception):
    """The request cannot be used; nothing was done."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Ledger:
    """SQLite tables, on disk before anybody is answered. `schema` creates those in `tables`."""

    def __init__(self, path: Path, schema: str, tables: tuple[str, ...]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._tables = tables
        self._lock = threading.Lock()
        self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._file.row_factory = sqlite3.Row
        self._file.execute("PRAGMA synchronous = FULL")  # fsync at every commit
        self._file.executescript(schema)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Every table, oldest row first."""
        with self.transaction() as file:
            return {
                table: [dict(row) for row in file.execute(f"SELECT * FROM {table} ORDER BY rowid")]
                for table in self._tables
            }

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One at a time. Commits, or rolls back what raised."""
        with self._lock:
            self._file.execute("BEGIN IMMEDIATE")
            with self._file:
                yield self._file


@dataclass(frozen=True)
class Faults:
    """How a service misbehaves; each has its own."""


def read_faults(kind: type[Faults], body: Mapping[str, Any]) -> Faults:
    """`kind(**body)`; what is left out is as it should be. Raises `RequestError`."""
    try:
        faults = kind(**body)
    except TypeError as error:
        raise RequestError(HTTPStatus.BAD_REQUEST, f"no such fault: {error}") from None
    for field in fields(faults):
        given, expected = getattr(faults, field.name), type(field.default)
        if type(given) is not expected and (type(given), expected) != (int, float):
            raise RequestError(
                HTTPStatus.BAD_REQUEST, f"{field.name} is a {expected.__name__}, not {given!r}"
            )
    return faults


class Handler(BaseHTTPRequestHandler):
    """Answers `GET /ledger`; a service adds its own in `get` and `post`."""

    server: "Service"

    def get(self, path: str, query: Mapping[str, str]) -> None:
        """Answer a GET. Raises `RequestError`, which is answered as it says."""
        raise RequestError(HTTPStatus.NOT_FOUND, f"there is no {path}")

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Answer a POST with a JSON object. Raises `RequestError` likewise."""
        raise NotImplementedError

    @property
    def faults(self) -> Faults:
        """How this request is misbehaved at: those of its key, if it has some of its own."""
        query = parse_qs(urlsplit(self.path).query)
        key = self.headers.get("Idempotency-Key") or query.get("key", [""])[-1]
        return self.server.faults_by_key.get(key, self.server.faults)

    def answer(self, status: HTTPStatus, document: Mapping[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def idempotency_key(self) -> str:
        key = self.headers.get("Idempotency-Key", "").strip()
        if not 0 < len(key) <= MAX_KEY_CHARACTERS:
            raise RequestError(
                HTTPStatus.BAD_REQUEST,
                f"an Idempotency-Key of 1 to {MAX_KEY_CHARACTERS} characters is required",
            )
        return key

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        try:
            if url.path == "/ledger":
                self.answer(HTTPStatus.OK, self.server.ledger.rows())
            else:
                query = {name: values[-1] for name, values in parse_qs(url.query).items()}
                self.get(url.path, query)
        except RequestError as refused:
            self.answer(refused.status, {"error": str(refused)})

    def do_POST(self) -> None:
        try:
            if self.path == "/fault":
                self._misbehave(self._body())
            else:
                self.post(self.path, self._body())
        except RequestError as refused:
            self.answer(refused.status, {"error": str(refused)})

    def _misbehave(self, body: dict[str, Any]) -> None:
        key = body.pop("key", None)
        faults = read_faults(type(self.server.faults), body)
        if key is None:
            self.server.faults = faults
        else:
            self.server.faults_by_key[str(key)] = faults
        self.answer(HTTPStatus.OK, vars(faults))

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

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        """Quiet: the ledger is the log."""


class Service(ThreadingHTTPServer):
    """A thread for each request."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, host: str, port: int, handler: type[Handler], ledger: Ledger, faults: Faults
    ) -> None:
        super().__init__((host, port), handler)
        self.ledger = ledger
        self.faults = faults
        self.faults_by_key: dict[str, Faults] = {}

    @property
    def address(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}"


def serve(
    what: str,
    port: int,
    handler: type[Handler],
    make_ledger: Callable[[Path], Ledger],
    faults: Faults,
) -> None:
    """The program: read the arguments, print the address, and answer until it is killed."""
    parser = argparse.ArgumentParser(description=f"{what} with a ledger of its own.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=port, help="0: any free one")
    parser.add_argument("--ledger", type=Path, required=True, help="its SQLite file")
    given = parser.parse_args()
    service = Service(given.host, given.port, handler, make_ledger(given.ledger), faults)
    print(service.address, flush=True)
    service.serve_forever()
