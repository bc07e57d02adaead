"""What is wrong with a JSON value, told by the JSON schema that it should fit.

The same sentences reach everybody who has to correct a value: the caller of a run, the model that
called a tool, the person who edited a proposal. Each names the place, the value and what is
expected: `quantity: 0 is less than 1`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from celeriac.codec import JsonValue, loads_strict
from celeriac.errors import InvalidInput

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

DECIMAL = "x-decimal"
"""A keyword of ours: the limits of a decimal, be it written as a number or as a string."""

MAX_PROBLEMS = 20
MAX_SHOWN_CHARACTERS = 100

_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_SENTENCES = {
    "minimum": "{value} is less than {expected}",
    "maximum": "{value} is more than {expected}",
    "exclusiveMinimum": "{value} is not more than {expected}",
    "exclusiveMaximum": "{value} is not less than {expected}",
    "multipleOf": "{value} is not a multiple of {expected}",
    "minLength": "{value} is shorter than {expected} characters",
    "maxLength": "{value} is longer than {expected} characters",
    "minItems": "{value} has fewer than {expected} items",
    "maxItems": "{value} has more than {expected} items",
    "pattern": "{value} does not match {expected}",
}


def check_against_schema(value: JsonValue, schema: Mapping[str, JsonValue]) -> None:
    """Raise `InvalidInput`, listing each problem with its place and value, unless `value` fits.

    For callers that know an agent only by its row in the database. Formats (`date-time`) and what
    only Python code can check are left to the worker, which has the agent's code. Decimals are
    checked with all their digits, if the schema is a `Shape.exact_schema`.
    """
    sent = strict_json(value)
    if problems := problems_by_schema(sent, schema):
        raise InvalidInput(listed(problems))
    try:
        json.dumps(sent, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:  # no schema can forbid it, and no `Shape` takes it
        raise InvalidInput("a string contains half a character, a lone surrogate") from error


def strict_json(value: object) -> JsonValue:
    """A copy of `value` as JSON that anybody could have sent, or `InvalidInput`: NaN, an object."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the value cannot be written as JSON: {error}") from error
    return loads_strict(text)


def problems_by_schema(value: JsonValue, schema: Mapping[str, JsonValue]) -> list[str]:
    """One sentence for each way in which `value` does not fit `schema`; empty if it fits."""
    validator = _validator(schema)
    try:
        return list(dict.fromkeys(_sentences(validator.iter_errors(value))))
    except RecursionError:  # only a schema that contains itself looks this deep into a value
        return ["the value is nested too deeply to be checked"]


def problems_as_far_as_known(
    value: object, schema: Mapping[str, JsonValue], unknown: type[object]
) -> list[str]:
    """The same, where parts of `value` are objects of the class `unknown` that stand for any value:
    what is wrong whatever they turn out to be."""
    validator = _validator(schema)
    try:
        errors = [
            error
            for error in validator.iter_errors(value)
            if not isinstance(error.instance, unknown)
            and (error.validator in _OF_OUTLINE or not _holds(error.instance, unknown))
        ]
        return list(dict.fromkeys(_sentences(errors)))
    except RecursionError:
        return ["the value is nested too deeply to be checked"]


def _validator(schema: Mapping[str, JsonValue]) -> Any:
    # Only here: whatever knows an agent imports this module, and starts sooner without jsonschema.
    from celeriac.schema_validator import validator

    return validator(schema)


# What is wrong by these is wrong whatever the parts of the value are.
_OF_OUTLINE = {"type", "required", "additionalProperties", "minItems", "maxItems"}


def _holds(value: object, unknown: type[object]) -> bool:
    if isinstance(value, dict):
        return any(_holds(part, unknown) for part in value.values())
    if isinstance(value, list):
        return any(_holds(part, unknown) for part in value)
    return isinstance(value, unknown)


def listed(problems: list[str]) -> str:
    """All problems in one line, the first `MAX_PROBLEMS` of them in full."""
    left_out = len(problems) - MAX_PROBLEMS
    more = [f"and {left_out} more"] if left_out > 0 else []
    return "; ".join(problems[:MAX_PROBLEMS] + more)


def located(path: Iterable[str | int], sentence: str) -> str:
    """`sentence` with its place before it: `lines[0].quantity: ...`."""
    place = ""
    for part in path:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part.isidentifier():
            place += f".{part}" if place else part
        else:
            place += f"[{json.dumps(part)}]"
    return f"{place}: {sentence}" if place else sentence


def shown(value: object) -> str:
    """`value` as JSON, cut where it would drown the sentence around it."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "…"


def _sentences(errors: Iterable["ValidationError"]) -> Iterator[str]:
    for error in errors:
        if error.validator in ("anyOf", "oneOf"):
            yield from _sentences_of_union(error)
        else:
            for path, sentence in _told(error):
                yield located([*error.absolute_path, *path], sentence)


def _told(error: "ValidationError") -> Iterator[tuple[list[str | int], str]]:
    """The sentences for one failed keyword, each with its place below the value that failed."""
    value: Any = error.instance
    expected: Any = error.validator_value
    match error.validator:
        case "required":
            for name in expected:
                if name not in value:
                    yield [name], "required, but missing"
        case "additionalProperties":
            schema: Any = error.schema
            known = schema.get("properties", {})
            for name in value:
                if name not in known:
                    yield [name], f"unknown; expected are {', '.join(known) or 'no values at all'}"
        case "type" | "enum" | "const" as keyword:
            yield [], f"{shown(value)} is not {_expectation({keyword: expected})}"
        case keyword if keyword in _SENTENCES:
            if isinstance(expected, float) and expected.is_integer():
                expected = int(expected)
            yield [], _SENTENCES[keyword].format(value=shown(value), expected=expected)
        case _:
            yield [], error.message


def _sentences_of_union(error: "ValidationError") -> Iterator[str]:
    """The problems with the one branch that was meant, or what all the branches expect."""
    choices: Any = error.validator_value
    schema: Any = error.schema
    branches: dict[int, list[ValidationError]] = {}
    for inner in error.context or ():
        branches.setdefault(int(inner.schema_path[0]), []).append(inner)
    if not branches:  # oneOf, and several fit
        yield located(error.absolute_path, f"{shown(error.instance)} fits several allowed forms")
        return
    if "discriminator" in schema and isinstance(error.instance, dict):
        yield from _sentences_of_tagged_union(error, branches, schema["discriminator"])
        return
    # A branch of another type was not meant: of `integer or null`, "0" can only be the integer.
    meant = [at for at, inner in branches.items() if not any(map(_is_wrong_type, inner))]
    if len(meant) == 1:
        yield from _sentences(branches[meant[0]])
        return
    expected = dict.fromkeys(_expectation(choices[at]) for at in meant or branches)
    yield located(error.absolute_path, f"{shown(error.instance)} is not {_any_of(expected)}")


def _sentences_of_tagged_union(
    error: "ValidationError",
    branches: "Mapping[int, list[ValidationError]]",
    discriminator: Any,
) -> Iterator[str]:
    value: Any = error.instance
    choices: Any = error.validator_value
    name, forms = discriminator["propertyName"], discriminator["mapping"]
    if name not in value:
        yield located([*error.absolute_path, name], "required, but missing")
    elif value[name] not in list(forms):
        sentence = f"{shown(value[name])} is not {_any_of(map(shown, forms))}"
        yield located([*error.absolute_path, name], sentence)
    else:
        form = forms[value[name]]  # the address of one, or itself a union by another name
        meant = {"$ref": form} if isinstance(form, str) else form
        yield from _sentences(branches[choices.index(meant)])


def _is_wrong_type(error: "ValidationError") -> bool:
    return error.validator == "type" and not error.relative_path


def _expectation(schema: Mapping[str, Any]) -> str:
    """What a schema wants, in a few words."""
    match schema:
        case {"$ref": str(reference)}:
            return f"a valid {reference.rpartition('/')[2]}"
        case {"enum": choices}:
            return _any_of(map(shown, choices))
        case {"const": choice}:
            return shown(choice)
        case {"type": str(name)}:
            return _TYPES[name]
        case {"type": names}:
            return _any_of(_TYPES[name] for name in names)
        case _:
            return f"a value that fits {shown(schema)}"


def _any_of(choices: Iterable[str]) -> str:
    *others, last = choices
    return f"{', '.join(others)} or {last}" if others else last
