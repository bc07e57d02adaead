"""Deciding what to do about an external call whose outcome nobody saw.

From the stored rows (`LostCall`) and from what the target says, by the tool's own declaration, and
from nothing else: any worker that recovers the same rows decides the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

from celeriac.codec import JsonValue
from celeriac.recovery import (
    LOOK_BACKOFF,
    MAX_LOOKS,
    MAX_SENDS,
    Done,
    Finding,
    NotDone,
    Recovery,
    Unclear,
)
from celeriac.states import EffectState
from celeriac_storage.lost_calls import LostCall

Details = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Settle:
    """It is known: `committed` with a result, or `failed` with an error."""

    state: EffectState
    result: JsonValue = None
    error: Details | None = None
    is_retried: bool = False  # of a failure: by its tool's policy it is worth another attempt
    is_seen: bool = False  # the target shows it


@dataclass(frozen=True, slots=True)
class SendAgain:
    """The same key once more: it is certainly not done, or the target does things once per key."""

    why: str
    is_certain: bool = False  # that it is not done; else it stays unknown until an answer comes


@dataclass(frozen=True, slots=True)
class LookLater:
    """Nothing can be said before so many seconds have passed."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Only a person can tell: the call is `unknown`, or `known_bad`."""

    state: EffectState
    why: str


Decision = Settle | SendAgain | LookLater | Ask


def decide(
    recovery: Recovery, attempt: int, lost: LostCall, look: Callable[[], Finding], why: str
) -> Decision:
    """What to do about attempt number `attempt`; `why` says how its outcome got lost.

    `look` asks the target, and is called only when its answer can be trusted: when the call is
    certainly over and the target has had its time to show what it did.
    """
    if lost.reported is EffectState.COMMITTED:
        return Settle(EffectState.COMMITTED, lost.report)
    if lost.reported is EffectState.FAILED and not lost.follows_doubt:
        assert isinstance(lost.report, dict)
        return Settle(EffectState.FAILED, error=lost.report, is_retried=lost.is_retried)
    if recovery.is_for_people:
        return Ask(EffectState.UNKNOWN, why)
    if lost.seconds_until_visible > 0:
        return LookLater(lost.seconds_until_visible, why)
    if recovery.verify is None:
        if lost.reported is EffectState.FAILED:
            return Ask(
                EffectState.UNKNOWN,
                f"an earlier attempt may have taken effect; attempt {attempt} was refused",
            )
        return _resend(attempt, why)
    match look():
        case Done(result):
            told = lost.returned if result is None else result
            return Settle(EffectState.COMMITTED, told, is_seen=True)
        case NotDone() if lost.has_returned:
            message = "the tool said that it worked, but the target does not show it"
            return Ask(EffectState.KNOWN_BAD, message)
        case NotDone() if attempt >= MAX_SENDS:
            message = f"{why}; the target says that it was not done, after {attempt} attempts"
            return Settle(EffectState.FAILED, error={"kind": "not_done", "message": message})
        case NotDone():
            return SendAgain("the target says that it was not done", is_certain=True)
        case Unclear(unclear):
            return _unclear(recovery, attempt, lost, f"{why}; the target cannot tell: {unclear}")


def _unclear(recovery: Recovery, attempt: int, lost: LostCall, why: str) -> Decision:
    if recovery.on_unknown == "resend":
        return _resend(attempt, why)
    if recovery.on_unknown == "verify" and lost.looks < MAX_LOOKS:
        return LookLater(LOOK_BACKOFF.delay_seconds(max(1, lost.looks)), why)
    return Ask(EffectState.UNKNOWN, why)


def _resend(attempt: int, why: str) -> Decision:
    if attempt >= MAX_SENDS:
        return Ask(EffectState.UNKNOWN, f"{why}; {attempt} attempts were made with the same key")
    return SendAgain(why)
