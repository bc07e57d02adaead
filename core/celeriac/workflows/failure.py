"""What a run's error says of an exception that a workflow's code did not catch."""

import traceback
from pathlib import Path

from celeriac.codec import JsonValue
from celeriac.errors import ActivityFailed, CeleriacError
from celeriac.secrets import redact

MAX_MESSAGE_CHARACTERS = 2000
_OURS = Path(__file__).parent


def report(error: Exception) -> dict[str, JsonValue]:
    """`kind`, `message`, and where in the code it was raised (`at`); of something that failed
    outside of the code also what is known of that (`cause`)."""
    is_told = isinstance(error, CeleriacError)
    message = str(error) if is_told else f"{type(error).__name__}: {error}"
    told: dict[str, JsonValue] = {
        "kind": "workflow_failed",
        # Before the cut: half a secret is not recognised.
        "message": redact(message)[:MAX_MESSAGE_CHARACTERS],
    }
    if (at := _place(error)) is not None:
        told["at"] = at
    if isinstance(error, ActivityFailed):
        told["kind"] = "activity_failed"
        told["cause"] = error.error
    return told


def _place(error: Exception) -> str | None:
    """The innermost line that is not of this package: `shop.py:12, in ship_order`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).parent != _OURS:
            return f"{Path(frame.filename).name}:{frame.lineno}, in {frame.name}"
    return None
