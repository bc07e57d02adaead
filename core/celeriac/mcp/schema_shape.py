"""The arguments of a tool that only its JSON schema tells of, which a stranger wrote."""

import copy
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from celeriac.codec import JsonValue
from celeriac.errors import InvalidAgent, InvalidInput
from celeriac.parameters import CONTEXT, Parameters
from celeriac.schemas import listed, problems_by_schema, strict_json
from celeriac.shapes import Shape

# Some patterns take `re` longer than the universe has, and it holds the interpreter meanwhile.
_LEFT_TO_THE_SERVER = ("pattern", "patternProperties")


class SchemaShape(Shape):
    """A shape without a Python type: a value is its own canonical form, and nothing is filled in.

    The server checks once more, and whatever patterns there are.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        """Raises `InvalidAgent` if it is no schema of an object."""
        if schema.get("type") != "object":
            raise InvalidAgent("its input schema is not that of an object")
        try:
            Draft202012Validator.check_schema(schema)
        except (SchemaError, RecursionError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise InvalidAgent(f"its input schema is none: {reason}") from error
        self.schema = copy.deepcopy(schema)
        self.exact_schema = copy.deepcopy(schema)
        self._checked = _without_patterns(schema)

    def read(self, value: object) -> tuple[JsonValue, Any]:
        sent = strict_json(value)
        try:
            problems = problems_by_schema(sent, self._checked)
        except Exception as error:
            raise InvalidInput(f"its schema cannot be applied: {type(error).__name__}") from error
        if problems:
            raise InvalidInput(listed(problems))
        return sent, sent

    def restore(self, canonical: JsonValue) -> Any:
        return self.read(canonical)[1]


@dataclass(frozen=True)
class SchemaParameters(Parameters):
    def restore(self, canonical: JsonValue) -> dict[str, Any]:
        return dict(self.shape.restore(canonical))


def read_schema(schema: dict[str, Any]) -> SchemaParameters:
    shape = SchemaShape(schema)
    return SchemaParameters(tuple(schema.get("properties", {})), CONTEXT, shape)


def _without_patterns(schema: Any) -> Any:
    match schema:
        case dict():
            return {
                key: _without_patterns(part)
                for key, part in schema.items()
                if key not in _LEFT_TO_THE_SERVER or not isinstance(part, str | dict)
            }
        case list():
            return [_without_patterns(part) for part in schema]
        case _:
            return schema
