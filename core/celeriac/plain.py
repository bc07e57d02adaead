"""What JSON has no word for, said in words that it has.

Pydantic's own rules where it has one (dates, UUIDs, addresses, models ...), so that a value reads
the same on its own and as the field of a model. What nobody can say becomes a bounded text.
"""

import base64
import dataclasses
import re
from collections import deque
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Set, ValuesView
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any

import pydantic_core

from celeriac.secrets import redact

MAX_DESCRIPTION_CHARACTERS = 200  # of the repr of a value that JSON does not know
MAX_TYPE_NAME_CHARACTERS = 80  # before it; a class made at run time may have any name

_MEMORY_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+| with id=\d+")


def plain(value: object) -> object:
    """`value` in words of JSON, one level deep: what it holds is left as it is.

    A frozenset stands for a list whose order is still to be found. An enum's member or a root
    model may give another value that `plain` must be asked about. Never raises, though it runs
    code of the value's class, which may.
    """
    try:
        return _converted(value)
    except Exception:  # noqa: BLE001  the value's class may raise anything
        return description(value)


def _converted(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__pos__(value)
    if isinstance(value, float):
        return float.__pos__(value)
    if isinstance(value, (Decimal, PurePath)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple, deque, KeysView, ValuesView, ItemsView)):
        return list(value)
    if isinstance(value, Set):
        return frozenset(value)
    if hasattr(type(value), "__pydantic_serializer__"):
        return _fields_of_model(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Iterator):
        return description(value)
    if callable(tolist := getattr(value, "tolist", None)):  # array.array, NumPy, PyTorch
        return tolist()
    return pydantic_core.to_jsonable_python(value, fallback=description)


def _fields_of_model(model: Any) -> object:
    try:
        return pydantic_core.to_jsonable_python(model, fallback=description)
    except Exception:  # noqa: BLE001  a serializer of the user's may raise anything
        # Bytes that are no UTF-8, a cycle: one bad field must not cost the others.
        return type(model).__pydantic_serializer__.to_python(model)


def description(value: object) -> str:
    """A bounded text about `value`, from its repr; never raises."""
    try:
        # Without addresses, the same value reads the same in every process. Redacted here, since
        # of a secret that is cut in two neither half would be recognised.
        about = redact(_MEMORY_ADDRESS.sub("", repr(value)))
    except Exception as error:  # noqa: BLE001  and so may a repr
        about = f"its repr raises {type(error).__name__}"
    return unserialisable(value, about)


def unserialisable(value: object, about: str) -> str:
    """What stands where `value` cannot."""
    if len(about) > MAX_DESCRIPTION_CHARACTERS:
        about = about[:MAX_DESCRIPTION_CHARACTERS] + "…"
    return f"[unserialisable {type(value).__name__[:MAX_TYPE_NAME_CHARACTERS]}: {about}]"
