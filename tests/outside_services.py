"""The examples' stand-ins for other people's services, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

EXAMPLES = Path(__file__).parent.parent / "examples"


class OutsideService:
    """A running service. Its ledger is read over HTTP: from outside, as its owner would."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = httpx2.Client(base_url=address)

    def misbehave(self, **faults: object) -> None:
        """From now on have exactly these faults; none: do as it should. With `key=` only requests
        with that key meet them."""
        self.client.post("/fault", json=faults).raise_for_status()

    @property
    def requests(self) -> list[tuple[str, dict[str, Any]]]:
        """Key and body of each request to change something, oldest first."""
        return self.keyed_rows("requests")

    def keyed_rows(self, table: str) -> list[tuple[str, dict[str, Any]]]:
        """Key and body of each row, oldest first."""
        return [(row["idempotency_key"], json.loads(row["body"])) for row in self.rows(table)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Each row as it is, oldest first."""
        ledger = self.client.get("/ledger").raise_for_status().json()
        return list(ledger[table])


@contextmanager
def running(program: str, ledger: Path) -> Iterator[str]:
    """Start a program of `examples/` on a free port with the ledger in file `ledger`, and end it
    afterwards; its address."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / program), "--port", "0", "--ledger", str(ledger)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        assert address, f"{program} ended at once, with {process.wait()}"
        yield address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
