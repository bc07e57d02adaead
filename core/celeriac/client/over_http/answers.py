"""JSON of the API as the reports that it was made from: the inverse of `reports.to_json`.

A field that this version does not know is left out, since a newer service may send more.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Report = TypeVar("Report")
Read = Callable[[Any], Any]


def reader(report: type[Report]) -> Callable[[Any], Report]:
    """What reads JSON as such a report. It raises `KeyError`, `TypeError` or `ValueError` for what
    is none."""
    return cast(Callable[[Any], Report], _reader(cast(Any, report)))


@cache
def _reader(declared: Any) -> Read:
    declared = getattr(declared, "__supertype__", declared)
    origin, arguments = get_origin(declared), get_args(declared)
    if isinstance(declared, type) and is_dataclass(declared):
        return _report_reader(declared)
    if isinstance(declared, type) and issubclass(declared, Enum):
        return declared
    if declared is datetime:
        return datetime.fromisoformat
    if declared is Decimal:
        return Decimal
    if origin in (Union, types.UnionType):
        inner = [each for each in arguments if each is not types.NoneType]
        if len(inner) > 1:
            return _as_it_is  # any JSON
        read_inner = _reader(inner[0])
        return lambda value: None if value is None else read_inner(value)
    if origin is Sequence:
        read_item = _reader(arguments[0])
        return lambda value: [read_item(item) for item in value]
    if origin is Mapping:
        read_value = _reader(arguments[1])
        return lambda value: {name: read_value(each) for name, each in value.items()}
    return _as_it_is


def _report_reader(report: Any) -> Read:
    hints = get_type_hints(report)
    members = {field.name: _reader(hints[field.name]) for field in fields(report)}
    return lambda value: report(**{name: read(value[name]) for name, read in members.items()})


def _as_it_is(value: Any) -> Any:
    return value
