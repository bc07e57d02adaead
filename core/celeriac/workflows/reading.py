"""From a value of the code to JSON, and from the JSON that was stored to what its type says."""

import inspect
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidInput
from celeriac.results import result_type
from celeriac.schemas import listed, located, shown
from celeriac.tools import Tool


def as_json(value: Any) -> Any:
    """With models, dates and the like written as pydantic does. Raises `InvalidInput` for what it
    does not know."""
    try:
        return to_jsonable_python(value)
    except (PydanticSerializationError, ValueError) as error:
        raise InvalidInput(f"this cannot be written as JSON: {error}") from error


class Reader:
    """Of JSON that was stored for a value of a type; without a type it is left as it is. Errors say
    of `what` it is the value."""

    def __init__(self, type_: Any, what: str) -> None:
        self._type = type_
        self._what = what

    def __call__(self, value: JsonValue) -> Any:
        if self._adapter is None:
            return value
        try:
            return self._adapter.validate_json(dumps(value))
        except ValidationError as error:
            problems = [
                located(each["loc"], f"{each['msg']}, and it is {shown(each['input'])}")
                for each in error.errors(include_url=False)
            ]
            raise InvalidInput(
                f"the result of {self._what} does not fit its type: {listed(problems)}"
            ) from error

    @property
    def schema(self) -> dict[str, JsonValue] | None:
        """That of the type; None for text and for any JSON."""
        if self._adapter is None or self._type is str:
            return None
        return self._adapter.json_schema()

    @cached_property
    def _adapter(self) -> TypeAdapter[Any] | None:
        if self._type in (Any, inspect.Parameter.empty):
            return None
        try:
            return TypeAdapter(self._type)
        except (PydanticUserError, TypeError):  # nothing that pydantic knows
            return None


def reader_of(tool: Tool[..., Any]) -> Reader:
    """The reader of what a tool returns, by its annotation."""
    return _reader_of_result(tool.function, tool.name)


@lru_cache(maxsize=1024)
def _reader_of_result(function: Callable[..., object], name: str) -> Reader:
    return Reader(result_type(function), name)
