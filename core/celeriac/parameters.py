"""The parameters of a tool's function: which of them the model fills in, and of what shape."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic_core import PydanticSerializationError, PydanticUndefined, ValidationError

from celeriac.codec import JsonValue
from celeriac.context import ToolContext
from celeriac.errors import InvalidAgent
from celeriac.shapes import Shape

CONTEXT = "(context)"
"""Where the `ToolContext` goes of a function that is made here; no parameter is called so."""

_BY_POSITION = {
    inspect.Parameter.POSITIONAL_ONLY: "can only be given by position, and arguments have names",
    inspect.Parameter.VAR_POSITIONAL: "stands for any number of values, and the model must know "
    "each by name; use one parameter that is a list",
    inspect.Parameter.VAR_KEYWORD: "stands for names that the model cannot know; write them out, "
    "or use one parameter that is a dict",
}


@dataclass(frozen=True)
class Parameters:
    """What a function takes, apart from its `ToolContext`."""

    names: tuple[str, ...]
    context: str | None
    """The name of the parameter that takes the `ToolContext`."""
    shape: Shape

    @property
    def schema(self) -> dict[str, JsonValue]:
        return self.shape.schema

    def restore(self, canonical: JsonValue) -> dict[str, Any]:
        """The keyword arguments that a stored canonical form stands for; see `Shape.restore`."""
        arguments = self.shape.restore(canonical)
        return {name: getattr(arguments, _field(index)) for index, name in enumerate(self.names)}


def read_parameters(function: Callable[..., object], descriptions: Mapping[str, str]) -> Parameters:
    """Read the signature of `function`; `descriptions` come from its docstring.

    Raises `InvalidAgent` if a model could not fill in a parameter.
    """
    hints = _hints(function)
    context: str | None = None
    fields: dict[str, Any] = {}
    names: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in _BY_POSITION:
            raise InvalidAgent(f"parameter {parameter} {_BY_POSITION[parameter.kind]}")
        if name not in hints:
            raise InvalidAgent(
                f"parameter {name!r} has no type; the model is told what to send by it. "
                f"Write {name}: str, or whatever it is"
            )
        if hints[name] is ToolContext:
            if context is not None:
                raise InvalidAgent(f"both {context!r} and {name!r} are a ToolContext; keep one")
            context = name
            continue
        # Fields are numbered and known by alias, since a model has no field `_x`, `json`, `copy`.
        about = Field(alias=name, description=descriptions.get(name) or None)
        if about.description is None:
            about = Field(alias=name)  # leaves a description inside the type as it is
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[_field(len(names))] = (Annotated[hints[name], about], default)
        names.append(name)
    return Parameters(tuple(names), context, _shape(function.__name__, fields))


def _field(index: int) -> str:
    return f"argument_{index}"


def _hints(function: Callable[..., object]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidAgent(
            f"the types of its parameters cannot be read: {error}. Every type must be known at "
            "module level when the tool is made, so import it outside `if TYPE_CHECKING`"
        ) from error


def _shape(name: str, fields: dict[str, Any]) -> Shape:
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidAgent(f"JSON cannot express its parameters: {reason}") from error
    _check_defaults(model)
    shape = Shape(model)
    for schema in (shape.schema, shape.exact_schema):
        schema.pop("title", None)  # the tool's own name, once more
    return shape


def _check_defaults(model: type[BaseModel]) -> None:
    """A default is filled in and stored like an argument that was sent, so it must be valid too."""
    for field in model.model_fields.values():
        default = field.get_default()
        if default is PydanticUndefined or field.default_factory is not None:
            continue
        adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
        try:
            adapter.validate_json(adapter.dump_json(default, warnings="error"))
        except (PydanticSerializationError, ValidationError) as error:
            raise InvalidAgent(
                f"parameter {field.alias!r} has the default {default!r}, which its type does not "
                "allow; write `| None` if it may be None"
            ) from error
