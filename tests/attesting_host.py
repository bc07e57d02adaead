"""A process that executes tools elsewhere, on a folder of its own, and attests what they did."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from celeriac.client import Client, Receipt
from celeriac.codec import JsonValue
from celeriac.reports import RequestedCall
from celeriac.workspace.attestation import attest, collect


class Host:
    """It executes the first call that a run waits for, by doing what a test says."""

    def __init__(self, client: Client, run_id: str, folder: Path) -> None:
        self.client = client
        self.run_id = run_id
        self.folder = folder

    @property
    def requested(self) -> list[RequestedCall]:
        return self.client.requested_calls(self.run_id)

    def receipt(
        self, deed: Callable[[], object] = lambda: None, result: JsonValue = "ok"
    ) -> dict[str, Any]:
        """The receipt of the first call that changes files, of which `deed` is all that it does."""
        call = next(call for call in self.requested if call.workspace is not None)
        assert call.workspace is not None
        before = collect(self.folder)
        deed()
        attestation = attest(
            before, collect(self.folder), root=call.workspace.root, nonce=call.workspace.nonce
        )
        return {
            "tool_call_id": call.call_id,
            "result": result,
            "host": "laptop-7",
            "workspace": attestation.to_json(),
        }

    def submit(self, receipt: JsonValue) -> str:
        assert isinstance(receipt, dict)
        return self.client.submit(
            self.run_id, {str(receipt["tool_call_id"]): Receipt(receipt)}, by="host"
        )

    def write(self, path: str, content: str) -> Callable[[], object]:
        """A deed that writes a file."""

        def write() -> None:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(content)

        return write


def altered(receipt: dict[str, Any], **wrong: JsonValue) -> dict[str, Any]:
    """The receipt with something else in these places of it, or of its attestation."""
    of_receipt = {name: value for name, value in wrong.items() if name in receipt}
    inner = {name: value for name, value in wrong.items() if name not in receipt}
    return {**receipt, "workspace": {**receipt["workspace"], **inner}, **of_receipt}
