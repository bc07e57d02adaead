"""Which JSON types a schema allows at a place in a value."""

from collections.abc import Mapping, Sequence
from typing import Any

from celeriac.codec import JsonValue

_DEFINITIONS = "#/$defs/"


def types_at(schema: Mapping[str, JsonValue], path: Sequence[str | int]) -> set[str] | None:
    """The JSON types that may stand at `path` in a value that fits `schema`; none at all if nothing
    can stand there, and `None` if the schema does not say."""
    return _types_at(schema, tuple(path), schema)


def _types_at(schema: Any, path: tuple[str | int, ...], root: Mapping[str, Any]) -> set[str] | None:
    match schema:
        case {"$ref": str(reference)} if reference.startswith(_DEFINITIONS):
            return _types_at(root["$defs"][reference.removeprefix(_DEFINITIONS)], path, root)
        case {"anyOf": choices} | {"oneOf": choices}:
            found = [_types_at(choice, path, root) for choice in choices]
            known = [types for types in found if types is not None]
            return set().union(*known) if len(known) == len(found) else None
        case {"type": str() | list() as names}:
            types = {names} if isinstance(names, str) else set(names)
        case _:
            return None
    if not path:
        return types
    part, *rest = path
    if isinstance(part, str):
        if "object" not in types:
            return set()
        inner = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
    else:
        if "array" not in types:
            return set()
        first = schema.get("prefixItems", [])
        inner = first[part] if part < len(first) else schema.get("items")
    return set() if inner is False else _types_at(inner, tuple(rest), root)
