"""The reports of `celeriac.reports` as models, for their schemas.

A response is a report, exactly as the command line prints it with --json, so that no field is
written down twice.
"""

import functools
import operator
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any, ForwardRef, Union, get_args, get_origin

from pydantic import BaseModel, create_model


@functools.cache
def model_of(report: type) -> type[BaseModel]:
    """A report's class as a model, for its schema. Any JSON is `Any`: pydantic knows no type that
    is defined by itself."""
    assert is_dataclass(report)
    members: dict[str, Any] = {field.name: (_shown(field.type), ...) for field in fields(report)}
    model: type[BaseModel] = create_model(report.__name__, __doc__=report.__doc__, **members)
    return model


def _shown(declared: Any) -> Any:
    if isinstance(declared, str | ForwardRef):
        return Any
    if isinstance(declared, type) and is_dataclass(declared):
        return model_of(declared)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_shown, arguments))
    if origin in (Sequence, list):
        return list[_shown(arguments[0])]  # type: ignore[misc]  # made while it runs
    if origin in (Mapping, dict):
        return dict[str, _shown(arguments[1])]  # type: ignore[misc]  # made while it runs
    if declared is Decimal:
        return str
    return getattr(declared, "__supertype__", declared)
