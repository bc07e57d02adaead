"""References of a step's arguments to the results of earlier steps.

A reference is written out, and nothing else is one, whatever it looks like:

    {"$result": "search"}                        all that step `search` came to
    {"$result": "search", "at": ["items", 0]}    a part of it
    {"$value": {"$result": "search"}}            no reference: the value as it stands

Results are never looked into for references: what a tool returns is data.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput
from celeriac.schemas import located, shown

RESULT, AT, VALUE = "$result", "at", "$value"

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """To the result of `step`, or to the part of it at `at`: keys of objects, indices from 0."""

    step: str
    at: Path = ()

    def __str__(self) -> str:
        return located(self.at, "").removesuffix(": ") if self.at else "all of it"


def result_of(step_id: str, *at: str | int) -> dict[str, JsonValue]:
    """A reference to a step's result, or to a part of it: `result_of("search", "items", 0)`."""
    part: list[JsonValue] = list(at)
    return {RESULT: step_id, **({AT: part} if part else {})}


def references(template: JsonValue) -> Iterator[tuple[Path, Reference]]:
    """Each reference in `template`, with its place. Raises `InvalidInput` for a malformed one."""
    for path, found in _parts(template, ()):
        if isinstance(found, Reference):
            yield path, found


def filled(template: JsonValue, results: Mapping[str, JsonValue]) -> JsonValue:
    """`template` with each reference replaced by what it refers to.

    Raises `InvalidInput` if there is no such result, or it has no such part.
    """
    return cast(JsonValue, _replaced(template, lambda found: _part(found, results)))


def opened(template: JsonValue) -> object:
    """`template` with each reference as a `Reference` object, and literal values as they are."""
    return _replaced(template, lambda found: found)


@dataclass(frozen=True, slots=True)
class _Literal:
    value: JsonValue


def _parts(template: JsonValue, path: Path) -> Iterator[tuple[Path, Reference | _Literal]]:
    if (form := _read(template, path)) is not None:
        yield path, form
    elif isinstance(template, dict):
        for name, value in template.items():
            yield from _parts(value, (*path, name))
    elif isinstance(template, list):
        for index, value in enumerate(template):
            yield from _parts(value, (*path, index))


def _replaced(template: JsonValue, replace: Callable[[Reference], object]) -> object:
    match _read(template, ()):
        case Reference() as reference:
            return replace(reference)
        case _Literal(value):
            return value
    if isinstance(template, dict):
        return {name: _replaced(value, replace) for name, value in template.items()}
    if isinstance(template, list):
        return [_replaced(value, replace) for value in template]
    return template


def _read(template: JsonValue, path: Path) -> Reference | _Literal | None:
    """The form that `template` is itself, if it is one."""
    if not isinstance(template, dict) or not {RESULT, VALUE} & template.keys():
        return None
    if template.keys() == {VALUE}:
        return _Literal(template[VALUE])
    step, at = template.get(RESULT), template.get(AT, [])
    if template.keys() <= {RESULT, AT} and isinstance(step, str) and _is_path(at):
        assert isinstance(at, list)
        return Reference(step, tuple(part for part in at if isinstance(part, str | int)))
    raise InvalidInput(
        located(
            path,
            f'{shown(template)} is no reference; write {{"{RESULT}": STEP}}, with "{AT}": a list '
            f'of keys and indices for a part of it, or {{"{VALUE}": …}} around what stays as it is',
        )
    )


def _is_path(at: JsonValue) -> bool:
    return isinstance(at, list) and all(
        isinstance(part, str) or (type(part) is int and part >= 0) for part in at
    )


def _part(reference: Reference, results: Mapping[str, JsonValue]) -> JsonValue:
    if reference.step not in results:
        raise InvalidInput(f"step {reference.step} has no result")
    value = results[reference.step]
    for depth, part in enumerate(reference.at):
        match value, part:
            case dict(), str() if part in value:
                value = value[part]
            case list(), int() if part < len(value):
                value = value[part]
            case _:
                so_far = Reference(reference.step, reference.at[: depth + 1])
                raise InvalidInput(
                    f"the result of step {reference.step} has nothing at {so_far}; there is "
                    f"{shown(value)}"
                )
    return value
