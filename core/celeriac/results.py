"""What a tool's function says that it returns."""

from collections.abc import Callable
from typing import Any, Literal, get_type_hints

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from celeriac.codec import JsonValue


def result_type(function: Callable[..., object]) -> Any:
    """Its annotation; `Any` without one, or if that is there for type checkers only."""
    try:
        return get_type_hints(function, include_extras=True).get("return", Any)
    except (NameError, TypeError):
        return Any


def result_schema(
    function: Callable[..., object],
    mode: Literal["validation", "serialization"] = "serialization",
) -> dict[str, JsonValue]:
    """The JSON schema of its results as they are written, or by `"validation"` of whatever is read
    as one of them; `{}` if nothing is known."""
    try:
        return TypeAdapter(result_type(function)).json_schema(
            mode=mode, schema_generator=_SchemaOfResult
        )
    except Exception:  # noqa: BLE001  nothing pydantic knows, or code of the type that fails
        return {}


def acceptable_schemas(function: Callable[..., object]) -> list[JsonValue]:
    """The JSON schemas of what a person may say that it returned: of what is read as one of its
    results, and if that differs (by an alias, say), of what it writes itself. Empty if nothing is
    known."""
    read, written = result_schema(function, "validation"), result_schema(function)
    if not read or not written:
        return []
    return [read] if read == written else [read, written]


class _SchemaOfResult(GenerateJsonSchema):
    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012  as in the base class
        "skipped-choice",
        "non-serializable-default",
    }
