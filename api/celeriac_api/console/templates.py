"""How values stand on a page: escaped, and with nothing hidden in them."""

import json
import unicodedata
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from celeriac.reports import to_json
from celeriac.states import EffectState, RunStatus
from celeriac_api.console.static import STATIC_PATH

LONGEST_VALUE_CHARACTERS = (
    20_000  # of a value that is only looked at; what is decided is shown whole
)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_LAYOUT = frozenset("\n\t")


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("celeriac_api.console"),
        autoescape=True,
        finalize=_finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["static"] = STATIC_PATH
    made.filters.update(
        amount=amount,
        document=document,
        duration=duration,
        clock=clock,
        age=age,
        shortened=shortened,
        tone=tone,
        wait=wait,
        words=words,
    )
    return made


def visible(text: str) -> str:
    """`text` with each character spelled out that a reader could not see: a mark that turns the
    direction of writing would let `100` be read as `001`, and one without width tells two equal
    names apart."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(each):04X}⟩"
        if unicodedata.category(each) in _HIDDEN and each not in _LAYOUT
        else each
        for each in text
    )


def document(value: Any) -> str:
    """A value as JSON for people."""
    return json.dumps(to_json(value), ensure_ascii=False, indent=2)


def shortened(text: str) -> str:
    if len(text) <= LONGEST_VALUE_CHARACTERS:
        return text
    left = len(text) - LONGEST_VALUE_CHARACTERS
    return f"{text[:LONGEST_VALUE_CHARACTERS]}\n… and {left} characters more"


def duration(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def amount(number: Decimal, measure: str) -> str:
    """So much of what a budget measures."""
    if measure == "usd":
        return f"${number:,.2f}" if number == round(number, 2) else f"${number.normalize():,f}"
    if measure == "seconds":
        return duration(float(number))
    return f"{number.normalize():,f}"


def clock(at: datetime) -> str:
    """The time of day in UTC, to the millisecond."""
    return at.astimezone(UTC).isoformat(" ", "milliseconds")[11:23]


def age(at: datetime) -> str:
    """How long ago."""
    seconds = max(0.0, (datetime.now(UTC) - at).total_seconds())
    return "just now" if seconds < 1.5 else f"{duration(float(int(seconds))).replace('.0', '')} ago"


def wait(at: datetime) -> str:
    """How long until then."""
    seconds = (at - datetime.now(UTC)).total_seconds()
    return "now" if seconds < 1 else f"in {duration(float(int(seconds))).replace('.0', '')}"


def words(name: str) -> str:
    """`waiting_approval` as people say it."""
    return name.replace("_", " ")


def tone(state: str) -> str:
    """Whether a status or state is good news: the name of a style."""
    return _TONES.get(state, "quiet")


_TONES: dict[str, str] = {
    **dict.fromkeys(("running", "queued", "in_flight", "planned", "open"), "live"),
    **dict.fromkeys(("paused", "proposed", "pending", "not_done", "superseded"), "wait"),
    **dict.fromkeys(("completed", "committed", "approved", "rolled_back", "alive"), "good"),
    **dict.fromkeys(
        ("needs_attention", "failed", "unknown", "known_bad", "rejected", "dead", "invalid",
         "precondition_failed", "revoked"),
        "bad",
    ),
}  # fmt: skip
assert {*RunStatus, *EffectState} - {"cancelled", "expired"} <= _TONES.keys()


def _finalized(value: Any) -> Any:
    if isinstance(value, Markup):
        return value  # made by a macro, in which each value was looked at
    return visible(value) if isinstance(value, str) else value
