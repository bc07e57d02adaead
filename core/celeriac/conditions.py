"""Conditions on the arguments of a call: `When("amount", ">", "500")`.

They decide who must agree to a call, and which calls a person may decide. Numbers are compared
exactly, as decimals. What cannot be compared, as a value that is missing, is neither true nor
false, so that each reader can take the more careful of the two.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Self, TypeAlias, cast

from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidAgent

Constant: TypeAlias = bool | int | str | Decimal | Sequence[int | str]
"""What an argument can be compared with; no float, which is not the number that was written."""

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")  # as arguments write decimals; no full-width digits
_ORDERING = ("<", "<=", ">", ">=")
_EQUALITY = ("==", "!=")
_MEMBERSHIP = ("in", "not in")


@dataclass(frozen=True)
class When:
    """A condition on one argument: `When("amount", ">", "500")`.

    `path` leads to the value, by names and, in lists, numbers: `lines.0.price`. `value` is the
    constant to compare with. `<`, `<=`, `>` and `>=` compare exactly, as decimals, and take an
    integer or a text such as `"12.50"`; a float is refused, because it is not the number that was
    written. `==`, `!=`, `in` and `not in` take texts, integers and booleans.

    Raises `InvalidAgent` if it could not be compared with anything.
    """

    path: str
    operator: str
    value: Constant

    def __post_init__(self) -> None:
        value: object = self.value
        if isinstance(value, Decimal) and value.is_finite():
            object.__setattr__(self, "value", f"{value:f}")
        elif isinstance(value, list | tuple):
            object.__setattr__(self, "value", tuple(value))
        if not self.path or not all(self.path.split(".")):
            raise InvalidAgent(f"{self}: the path is no names with dots between them")
        if problem := self._problem():
            raise InvalidAgent(f"{self}: {problem}")

    def __str__(self) -> str:
        return f"{self.path} {self.operator} {dumps(self.value)}"

    def holds(self, arguments: JsonValue) -> bool | None:
        """Whether the arguments fulfil it; None if that cannot be said, as of a missing value.

        What follows from None is the caller's: the more careful of the two.
        """
        found = value_at(arguments, self.path)
        if self.operator in _ORDERING:
            number, limit = exact_number(found), exact_number(self.value)
            if number is None or limit is None:
                return None
            return bool(_compare(number, self.operator, limit))
        if self.operator in _EQUALITY:
            equal = _is_equal(found, self.value)
            return equal if equal is None or self.operator == "==" else not equal
        assert isinstance(self.value, tuple)
        answers = [_is_equal(found, each) for each in self.value]
        if True not in answers and None in answers:
            return None
        return (True in answers) == (self.operator == "in")

    def to_json(self) -> JsonValue:
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        return [self.path, self.operator, cast(JsonValue, value)]

    @classmethod
    def from_json(cls, stored: object) -> Self:
        """Raises `InvalidAgent` for what `to_json` does not write."""
        match stored:
            case [str(path), str(operator), value]:
                return cls(path, operator, cast(Constant, value))
            case _:
                raise InvalidAgent(f"{stored!r} is no condition: [path, operator, value]")

    def _problem(self) -> str | None:
        if self.operator in _ORDERING:
            if exact_number(self.value) is None or isinstance(self.value, float):
                return 'compare with an integer, a Decimal, or a text such as "12.50"'
        elif self.operator in _EQUALITY:
            if not isinstance(self.value, bool | int | str):
                return "compare with a text, an integer or a boolean"
        elif self.operator in _MEMBERSHIP:
            members = self.value
            if not isinstance(members, tuple) or not all(
                isinstance(each, int | str) for each in members
            ):
                return "compare with a list of texts and integers"
        else:
            return f"the operators are {', '.join((*_ORDERING, *_EQUALITY, *_MEMBERSHIP))}"
        return None


def conditions(given: When | Sequence[When]) -> tuple[When, ...]:
    conditions = (given,) if isinstance(given, When) else tuple(given)
    for each in conditions:
        if not isinstance(each, When):
            raise InvalidAgent(f'{each!r} is no condition; write When("amount", ">", "500")')
    return conditions


def value_at(arguments: JsonValue, path: str) -> JsonValue:
    """The value that `path` leads to, or None if there is none."""
    found = arguments
    for part in path.split("."):
        match found:
            case dict() if part in found:
                found = found[part]
            case list() if part.isdecimal() and part.isascii() and int(part) < len(found):
                found = found[int(part)]
            case _:
                return None
    return found


def exact_number(value: object) -> Decimal | None:
    """The number that an argument holds, exactly as it was written; None if it is none."""
    match value:
        case bool():
            return None
        case int():
            return Decimal(value)
        case float() if math.isfinite(value):
            return Decimal(repr(value))
        case str() if _NUMBER.fullmatch(value):
            return Decimal(value)
        case _:
            return None


def _compare(number: Decimal, operator: str, limit: Decimal) -> bool:
    match operator:
        case "<":
            return number < limit
        case "<=":
            return number <= limit
        case ">":
            return number > limit
        case _:
            return number >= limit


def _is_equal(found: JsonValue, constant: Constant) -> bool | None:
    if isinstance(constant, bool) or isinstance(found, bool):
        return found is constant if isinstance(found, type(constant)) else None
    if isinstance(constant, int):
        number = exact_number(found)
        return None if number is None else number == constant
    # As text, to the letter: "007" and "7" are two order numbers.
    return found == constant if isinstance(found, str) else None
