"""What a JSON value must look like, said by a Python type: a run's input, a tool's arguments."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import PydanticSerializationError, core_schema

from celeriac.codec import JsonValue
from celeriac.errors import InvalidAgent, InvalidInput
from celeriac.reasons import reason
from celeriac.schemas import DECIMAL, listed, located, problems_by_schema, shown, strict_json

Path: TypeAlias = tuple[str | int, ...]

_DECIMAL_LIMITS = ("gt", "ge", "lt", "le", "max_digits", "decimal_places")


class Shape:
    """A type that pydantic knows, with its JSON schema.

    `exact_schema` is for those who check a value without the type: it also says (`DECIMAL`) what
    JSON Schema cannot say of a decimal that is written as a string. Models are not shown it.

    A value fits if it fits both. The schema comes first, because it is what the model and callers
    without the type were shown, and because pydantic alone would take `"12"` for an integer and
    `"1_000"` for a decimal. A number without a fraction (`3.0`) is an integer, as in JSON Schema.
    Keys that the type does not know are refused, in nested models too, unless their `model_config`
    says `extra="ignore"` or `"allow"`.
    """

    def __init__(self, type_: Any) -> None:
        """Raises `InvalidAgent` for a type that JSON cannot express."""
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(type_)
            self.exact_schema: dict[str, JsonValue] = self._adapter.json_schema(
                schema_generator=_SchemaOfShape
            )
            self.schema = cast("dict[str, JsonValue]", without_decimals(self.exact_schema))
        except (PydanticUserError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidAgent(f"JSON cannot express the type {_name(type_)}: {reason}") from error
        self._type_name = _name(type_)

    def read(self, value: object) -> tuple[JsonValue, Any]:
        """The canonical form of `value`, and the Python object that it stands for.

        The canonical form is what is stored, hashed, shown to a reviewer and executed: JSON, with
        the defaults filled in, so that a new version of the code with other defaults cannot change
        what was approved. It reads back as an equal object and as itself, but for the order of
        sets.

        Raises `InvalidInput` listing each problem with its place, value and what was expected, and
        `InvalidAgent` if the type loses something on the way to JSON and back (`SecretStr`).
        """
        sent = strict_json(value)
        parsed = self._parsed(sent)
        try:
            canonical: JsonValue = self._adapter.dump_python(
                parsed, mode="json", by_alias=True, warnings="error"
            )
        except (PydanticSerializationError, ValueError) as error:
            raise InvalidAgent(self._loss(f"{error}")) from error
        if problems := list(_inexact(sent, canonical, ())):
            raise InvalidInput(listed(problems))
        if canonical != sent and self._parsed(canonical) != parsed:
            raise InvalidAgent(self._loss(f"{shown(canonical)} is not {shown(sent)}"))
        return canonical, parsed

    def restore(self, canonical: JsonValue) -> Any:
        """The Python object that a canonical form, stored earlier, stands for.

        Raises `InvalidInput` if the type has changed since and no longer takes it, or takes it only
        by filling in what was not there when it was stored and perhaps approved.
        """
        today, parsed = self.read(canonical)
        if problems := list(_filled_in(canonical, today, ())):
            raise InvalidInput(listed(problems))
        return parsed

    def _parsed(self, value: JsonValue) -> Any:
        if problems := problems_by_schema(value, self.schema):
            raise InvalidInput(listed(problems))
        try:
            return self._adapter.validate_json(json.dumps(value))
        except ValidationError as error:
            raise InvalidInput(listed(list(_sentences(error, value)))) from error

    def _loss(self, what: str) -> str:
        return (
            f"a value of {self._type_name} does not survive being written as JSON and read back, "
            f"as every stored value is: {what}. Use a type whose JSON form is complete"
        )


def without_decimals(schema: JsonValue) -> JsonValue:
    match schema:
        case dict():
            return {key: without_decimals(part) for key, part in schema.items() if key != DECIMAL}
        case list():
            return [without_decimals(part) for part in schema]
        case _:
            return schema


def _name(type_: Any) -> str:
    return type_.__qualname__ if isinstance(type_, type) else str(type_)


def _sentences(error: ValidationError, value: JsonValue) -> Iterator[str]:
    """What pydantic found where the schema found nothing."""
    for problem in error.errors(include_url=False):
        path = _path_in(value, problem["loc"])
        told = reason(problem)
        if problem["type"] == "json_invalid":  # the text was written here, so it can only be this
            yield f"a string contains half a character, a lone surrogate: {told}"
        elif problem["type"] == "missing":
            yield located([*path, str(problem["loc"][-1])], "required, but missing")
        elif limit := _LIMITS.get(problem["type"]):
            key, words = limit
            yield located(path, f"{shown(problem['input'])} is {words} {problem['ctx'][key]}")
        else:
            yield located(path, f"{shown(problem['input'])}: {told[:1].lower()}{told[1:]}")


# Worded as by the schema, which does not see the limits of a decimal that comes as a string.
_LIMITS = {
    "greater_than_equal": ("ge", "less than"),
    "less_than_equal": ("le", "more than"),
    "greater_than": ("gt", "not more than"),
    "less_than": ("lt", "not less than"),
}


def _path_in(value: JsonValue, location: Sequence[str | int]) -> list[str | int]:
    """`location` without the names of union branches, which are no place in `value`."""
    path: list[str | int] = []
    at = value
    for part in location:
        match at, part:
            case dict(), str() if part in at:
                at = at[part]
            case list(), int() if part < len(at):
                at = at[part]
            case _:
                continue
        path.append(part)
    return path


def _filled_in(stored: JsonValue, today: JsonValue, path: Path) -> Iterator[str]:
    """What the canonical form has today and had not when it was stored."""
    match stored, today:
        case dict(), dict():
            for key in today:
                if key in stored:
                    yield from _filled_in(stored[key], today[key], (*path, key))
                else:
                    yield located((*path, key), "missing: the code did not have it yet")
        case list(), list():
            for index, (item, now) in enumerate(zip(stored, today, strict=False)):
                yield from _filled_in(item, now, (*path, index))


def _inexact(sent: JsonValue, canonical: JsonValue, path: Path) -> Iterator[str]:
    """Decimals sent as numbers whose digits a float may have changed: 12345678901234567.89."""
    match sent, canonical:
        case dict(), dict():
            for key in sorted(sent.keys() & canonical.keys()):
                yield from _inexact(sent[key], canonical[key], (*path, key))
        case list(), list():
            for index, (item, written) in enumerate(zip(sent, canonical, strict=False)):
                yield from _inexact(item, written, (*path, index))
        case float(), str() if not _is_exact(sent):
            sentence = f"{sent!r} may have lost digits as a JSON number; send it as a string"
            yield located(path, sentence)


def _is_exact(number: float) -> bool:
    """Whether its 15 digits, which every float keeps, are all that was sent."""
    return float(f"{number:.{sys.float_info.dig}g}") == number


class _SchemaOfShape(GenerateJsonSchema):
    """Closed objects, exact decimals, and no titles that only repeat a name."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012  as in the base class
        "skipped-choice",
        "non-serializable-default",
    }

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        limits = {name: schema[name] for name in _DECIMAL_LIMITS if name in schema}  # type: ignore[literal-required]  # all are keys of it
        exact = {
            name: limit if isinstance(limit, int) else str(limit) for name, limit in limits.items()
        }
        drawn = super().decimal_schema(schema)
        return {**drawn, DECIMAL: exact} if exact else drawn

    def get_decimal_pattern(self, schema: core_schema.DecimalSchema) -> str:
        # Python's Decimal would also read "1_000", "1E+30", " 5" and full-width digits.
        return r"^-?[0-9]+(\.[0-9]+)?$"

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema), schema["cls"].model_config)

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        config = getattr(schema["cls"], "__pydantic_config__", ConfigDict())
        return _closed(super().dataclass_schema(schema), config)

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        config = getattr(schema.get("cls"), "__pydantic_config__", ConfigDict())
        return _closed(super().typed_dict_schema(schema), config)


def _closed(schema: JsonSchemaValue, config: ConfigDict | None) -> JsonSchemaValue:
    if schema.get("type") == "object" and "extra" not in cast(dict[str, object], config or {}):
        schema.setdefault("additionalProperties", False)
    return schema
