"""jsonschema's validator, with patterns as JavaScript reads them and with decimals.

Imported where a first value is checked, never before (`celeriac.schemas`).
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import referencing
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from celeriac.conditions import exact_number
from celeriac.schemas import DECIMAL, shown


def validator(schema: Mapping[str, Any]) -> Any:
    """jsonschema's validator of values that should fit `schema`."""
    # An empty registry: the default one would fetch a `$ref` to an address over the network.
    return _SchemaValidator(dict(schema), registry=referencing.Registry())


def _decimal(
    _validator: Validator, limits: Mapping[str, Any], instance: object, _schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    number = exact_number(instance)
    if number is None:
        return  # no number at all, which the rest of the schema says
    if "max_digits" in limits and "decimal_places" in limits:
        whole = max(0, limits["max_digits"] - limits["decimal_places"])  # as pydantic reads both
        limits = {**limits, "whole_digits": whole}
    for name, limit in limits.items():
        if problem := _decimal_problem(number, name, limit):
            yield ValidationError(f"{shown(instance)} {problem}")


def _decimal_problem(number: Decimal, name: str, limit: Any) -> str | None:
    _, digits, exponent = number.normalize().as_tuple()
    assert isinstance(exponent, int), "it is finite"
    places = max(0, -exponent)
    match name:
        case "gt" if number <= Decimal(limit):
            return f"is not more than {limit}"
        case "ge" if number < Decimal(limit):
            return f"is less than {limit}"
        case "lt" if number >= Decimal(limit):
            return f"is not less than {limit}"
        case "le" if number > Decimal(limit):
            return f"is more than {limit}"
        case "decimal_places" if places > limit:
            return f"has more than {limit} decimal places"
        case "max_digits" if max(len(digits) + max(0, exponent), places) > limit:
            return f"has more than {limit} digits"
        case "whole_digits" if number.adjusted() >= limit:
            return f"has more than {limit} digits before the decimal point"
        case _:
            return None


def _pattern(
    _validator: Validator, pattern: str, instance: object, _schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, str):
        compiled = _compiled(pattern)
        if compiled is not None and not compiled.search(instance):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    r"""`pattern` in the dialect of JSON schemas, ECMA-262: `\d` is 0 to 9, `$` only the very end.

    Python's own `\d` takes full-width digits too, and its `$` a line end after the amount.
    `None` for what Python cannot compile (`\p{L}`): pydantic decides then, in the worker.
    """
    anchored = _DOLLAR.sub(lambda found: found[1] or r"\Z", pattern)
    try:
        return re.compile(anchored, re.ASCII)
    except re.error:
        return None


# A dollar that is an anchor: neither escaped nor inside [...], which the group keeps as it is.
_DOLLAR = re.compile(r"(\\.|\[(?:\\.|[^\]\\])*\])|\$", re.DOTALL)
_SchemaValidator: Any = extend(  # type: ignore[no-untyped-call]  # the stubs leave it untyped
    Draft202012Validator, {"pattern": _pattern, DECIMAL: _decimal}
)
