"""What a process that executes tools sends with a result, if the call changes files there.

    {"tool_call_id": "3.0", "result": …, "host": "laptop-7", "workspace": {attestation}}

or `"error": TEXT` in the place of `result`. `celeriac attest --call` makes one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from celeriac.codec import JsonValue
from celeriac.errors import InvalidReceipt
from celeriac.evidence import UNTOLD, Changes, Standing
from celeriac.workspace.attestation import Attestation, check, read_attestation

MAX_HOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Receipt:
    """A result with its receipt, as it was given. It is checked when it is submitted."""

    given: JsonValue


@dataclass(frozen=True, slots=True)
class Issued:
    """What a call is requested with, and its receipt must say again."""

    root: str
    nonce: str


@dataclass(frozen=True, slots=True)
class CheckedReceipt:
    """What a good receipt says."""

    result: JsonValue
    error: str | None
    """With it there is no result: the call failed."""
    host: str
    attestation: Attestation

    @property
    def changes(self) -> Changes:
        """What the call did to the files. Without the contents, what stood at a path is not known,
        but for what was made or deleted."""
        told = self.attestation
        paths: dict[str, tuple[Standing, Standing]] = {}
        paths |= dict.fromkeys(told.created, (None, UNTOLD))
        paths |= dict.fromkeys(told.modified, (UNTOLD, UNTOLD))
        paths |= dict.fromkeys(told.deleted, (UNTOLD, None))
        paths |= told.contents or {}
        return Changes(told.root, paths, told.before_digest, told.after_digest)


def read_receipt(receipt: Receipt, call_id: str, issued: Issued) -> CheckedReceipt:
    """What the receipt says, if it is of this call and agrees with itself. Raises `InvalidReceipt`
    naming what is wrong with it. Whether it continues from the last one is not asked here."""
    given = receipt.given
    refuse = _refusing(call_id)
    if not isinstance(given, dict):
        raise refuse("it is no JSON object")
    if unknown := given.keys() - {"tool_call_id", "result", "error", "host", "workspace"}:
        raise refuse(f"it has no {', '.join(sorted(unknown))}")
    if given.get("tool_call_id") != call_id:
        raise refuse(f"it is of call {given.get('tool_call_id')!r}")
    if ("result" in given) == ("error" in given):
        raise refuse("it must have either a result or an error")
    error, host = given.get("error"), given.get("host")
    if "error" in given and not (isinstance(error, str) and error):
        raise refuse("its error is no text")
    if not isinstance(host, str) or not 0 < len(host) <= MAX_HOST_CHARACTERS:
        raise refuse(f"its host is no text of 1 to {MAX_HOST_CHARACTERS} characters")
    if "workspace" not in given:
        raise refuse("it has no workspace, which says what became of the files")
    attestation = read_attestation(given["workspace"])
    check(attestation, root=issued.root, nonce=issued.nonce, last_digest=None)
    return CheckedReceipt(
        given.get("result"), error if isinstance(error, str) else None, host, attestation
    )


def _refusing(call_id: str) -> Callable[[str], InvalidReceipt]:
    def refuse(why: str) -> InvalidReceipt:
        return InvalidReceipt(
            f"the receipt of call {call_id} cannot be used: {why}; nothing of the batch was "
            "recorded"
        )

    return refuse
