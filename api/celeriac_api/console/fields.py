"""A call's arguments as fields of a form, and back; and what an edit has changed of them.

A text stands in its field as it is, every other value as JSON. What nobody has touched comes back
exactly as it was proposed, whatever a browser does to it on the way.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from celeriac.codec import JsonValue
from celeriac_api.console.forms import Form, json_value
from celeriac_api.console.templates import document, visible

PREFIX = "argument."


@dataclass(frozen=True, slots=True)
class Field:
    """One argument."""

    name: str
    value: JsonValue
    shown: str  # in the form
    is_text: bool
    is_fixed: bool  # no edit may change it

    @property
    def rows(self) -> int:
        return min(12, 1 + self.shown.count("\n") + len(self.shown) // 60)


@dataclass(frozen=True, slots=True)
class Change:
    """One argument before and after; None where it is not there."""

    name: str
    before: str | None
    after: str | None

    @property
    def is_one(self) -> bool:
        return self.before != self.after


def fields_of(arguments: JsonValue, immutable: object, typed: Mapping[str, str]) -> list[Field]:
    """The arguments in their order, as far as they are in `typed` as somebody has edited them."""
    fixed = immutable if isinstance(immutable, list | tuple) else ()
    return [
        Field(
            name,
            value,
            typed.get(PREFIX + name, _shown(value)),
            isinstance(value, str),
            name in fixed,
        )
        for name, value in _members(arguments).items()
    ]


def edited(arguments: JsonValue, form: Form) -> dict[str, JsonValue]:
    """The arguments as the form has them. Raises `InvalidInput` for what is no JSON."""
    found: dict[str, JsonValue] = {}
    for name, value in _members(arguments).items():
        if PREFIX + name not in form.fields:
            found[name] = value
            continue
        text = form.text(PREFIX + name)
        if text == visible(_shown(value)).replace("\r\n", "\n"):
            found[name] = value
        else:
            found[name] = text if isinstance(value, str) else json_value(text, name)
    return found


def changes(before: JsonValue, after: JsonValue) -> list[Change]:
    """Every argument of either, in order."""
    old, new = _members(before), _members(after)
    return [
        Change(
            name,
            _shown(old[name]) if name in old else None,
            _shown(new[name]) if name in new else None,
        )
        for name in dict.fromkeys([*old, *new])
    ]


def _shown(value: JsonValue) -> str:
    return value if isinstance(value, str) else document(value)


def _members(arguments: JsonValue) -> dict[str, JsonValue]:
    return arguments if isinstance(arguments, dict) else {}
