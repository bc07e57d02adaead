"""The one codec between Python values and the jsonb that PostgreSQL stores.

    dumps    any object → JSON text; what the object holds can never make it fail
    loads    JSON text that dumps wrote, as jsonb prints it → plain values
    stored_form   loads(dumps(value)): what a process reads that was not there when it was written
    loads_strict  JSON text of a model or a person → plain values, or InvalidInput

A result is saved after the effect has happened, so saving must not fail: a value that JSON does
not know is described in a bounded string. And a step behaves the same before and after a crash
only if both work with the stored form, so that form is made equal to what jsonb gives back, the
order of keys and the type of numbers included:

- Keys come in jsonb's own order: shorter first (in bytes of UTF-8), then by byte.
- A float stays a float. Of `1e+16` jsonb makes 10000000000000000, which is read back as an int,
  so it is written as `10000000000000000.0`. It knows no -0.0, so that becomes 0.0.
- NaN and the infinities are no JSON; they become the strings "NaN", "Infinity", "-Infinity".
- jsonb refuses U+0000 and lone surrogates. They are written as `ESCAPE` and four hex digits, and
  so is `ESCAPE` itself (PostgreSQL manual, section 8.14, on what jsonb rejects).
- Secrets are replaced (`celeriac.secrets`).

None is kept: whoever stores a model's optional fields leaves them out before.
"""

import dataclasses
import json
import math
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, TypeAlias, cast

from celeriac.errors import InvalidInput
from celeriac.plain import description, plain, unserialisable
from celeriac.secrets import redact

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""What JSON can say. A pydantic field needs `pydantic.JsonValue`, which means the same."""

ESCAPE = "\uece1"
"""A private-use character that no common icon font claims."""

MAX_DEPTH = 100  # levels of lists, dicts and objects; a level takes up to 3 of Python's 1000 frames
MAX_INTEGER_DIGITS = 4300  # Python's default limit for int <-> str, which a reader may have too

_MAX_INTEGER_BITS = 14_284  # 2 ** 14_284 is the last power of two with 4300 digits
_MAX_EXCERPT_CHARACTERS = 80  # of somebody's key, number or pointer in a message
_LEAST_FLOAT_WITH_EXPONENT = 1e16  # from here on, repr writes 1e+16

_REFUSED_CHARACTER = re.compile(f"[{ESCAPE}\ud800-\udfff]")
# In JSON text a backslash pair may stand before u0000, so pairs are consumed first.
_REFUSED_IN_JSON = re.compile(rf"\\\\|\\u0000|[{ESCAPE}\ud800-\udfff]")
_ESCAPED = re.compile(f"{ESCAPE}(0000|d[89a-f][0-9a-f]{{2}}|{ord(ESCAPE):04x})")

_string = json.JSONEncoder(ensure_ascii=False).encode
# Not strict: an unescaped control character, such as the NUL that `loads` puts back, is let in.
_stored_json = json.JSONDecoder(strict=False)


def dumps(value: object) -> str:
    """The canonical JSON text of `value`, redacted, in a form that jsonb keeps as it is.

    Never fails because of what `value` holds. Dates, UUIDs, paths, enums, decimals, dataclasses
    and pydantic models become what pydantic writes for them, bytes base64, a set a sorted list.
    Keys become strings; where two become the same one, the later gets a number: "1", "1 (2)".
    What JSON cannot say becomes a string "[unserialisable TYPE: ...]": an unknown object (by its
    repr), an iterator (reading it could block or have effects), a value that holds itself, what
    lies deeper than `MAX_DEPTH`, an int of more than `MAX_INTEGER_DIGITS`. It does not limit the
    size of a value that JSON can say.
    """
    try:
        text = _text(value, set())
    except RecursionError:  # the caller stood close to the end of the stack already
        text = _string(description(value))
    storable = _escape(redact(text))
    if storable is text:
        return text
    # A key may read differently now, or as another one does: number and sort them once more.
    return _text(json.loads(storable, object_pairs_hook=_distinct), set())


def loads(text: str | bytes) -> JsonValue:
    """The value of JSON text that `dumps` wrote, straight or as jsonb printed it.

    Meant as the JSON loader of the database driver, so it trusts its input. It raises ValueError
    for text that is no JSON.
    """
    if isinstance(text, bytes):
        text = text.decode()
    if ESCAPE in text:
        # The character itself, not \uXXXX: json would join two lone surrogates to one character.
        text = _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 16)), text)
        value: JsonValue = _stored_json.decode(text)
    else:
        value = json.loads(text)
    return value


def stored_form(value: object) -> JsonValue:
    """What any process will read after `value` was stored; use it instead of the live object.

    It is a copy and equals `value` if that is plain JSON without secrets. It costs a `dumps` and
    a `loads`: 21 µs for a message of 1 KB.
    """
    if value is None or value is True or value is False:
        return value
    return loads(dumps(value))


# --------------------------------------------------------------- text of a model or a person


def loads_strict(text: str | bytes) -> JsonValue:
    """The value of JSON text that somebody else wrote, exactly as it was meant, or InvalidInput.

    Refuses what a lenient reader would change silently: a key that stands twice in one object,
    NaN and Infinity, a number beyond the range of a float (`1e400`), and what `dumps` could not
    store as it is: an int of more than `MAX_INTEGER_DIGITS`, nesting deeper than `MAX_DEPTH`.
    A decimal fraction becomes the nearest float. The message says where, as a JSON pointer
    (RFC 6901) or as line and column.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        value = _strict_json.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"this is no JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"this is no JSON: byte {error.start} is not UTF-8") from error
    except RecursionError as error:
        raise InvalidInput(f"this JSON is nested deeper than {MAX_DEPTH} levels") from error
    if refused := _first_refused(value, "", 0):
        pointer, problem = refused
        raise InvalidInput(
            f"this JSON cannot be used: {problem} ({_shortened(pointer) or 'at the top'})"
        )
    return cast(JsonValue, value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Refused:
    """Stands in the parsed value for what cannot be used, so that its place is known."""

    problem: str


def _strict_object(pairs: list[tuple[str, object]]) -> dict[str, object] | _Refused:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    return _Refused(f"the key {_excerpt(twice)} stands twice in one object")


def _strict_float(literal: str) -> float | _Refused:
    value = float(literal)
    if math.isfinite(value):
        return value
    return _Refused(f"the number {_excerpt(literal)} is out of range, at most about 1.8e308")


def _strict_int(literal: str) -> int | _Refused:
    digits = len(literal.removeprefix("-"))
    if digits <= MAX_INTEGER_DIGITS:
        return int(literal)
    return _Refused(f"an integer has {digits} digits, at most {MAX_INTEGER_DIGITS} can be stored")


def _strict_constant(name: str) -> _Refused:
    return _Refused(f"{name} is not a JSON number")


_strict_json = json.JSONDecoder(
    object_pairs_hook=_strict_object,
    parse_float=_strict_float,
    parse_int=_strict_int,
    parse_constant=_strict_constant,
)


def _first_refused(value: object, pointer: str, depth: int) -> tuple[str, str] | None:
    """Where and why the first part of `value` cannot be used."""
    if isinstance(value, _Refused):
        return pointer, value.problem
    if not isinstance(value, (dict, list)):
        return None
    if depth == MAX_DEPTH:
        return pointer, f"nested deeper than {MAX_DEPTH} levels"
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, (dict, list, _Refused)):
            step = str(name).replace("~", "~0").replace("/", "~1")
            if found := _first_refused(item, f"{pointer}/{step}", depth + 1):
                return found
    return None


def _excerpt(text: str) -> str:
    return repr(_shortened(text))


def _shortened(text: str) -> str:
    text = redact(text)  # before the cut: half a secret is not recognised
    return text if len(text) <= _MAX_EXCERPT_CHARACTERS else text[:_MAX_EXCERPT_CHARACTERS] + "…"


# ------------------------------------------------------------------------------------ writing


def _text(value: object, ancestors: set[int]) -> str:
    """`value` as JSON text, unredacted and unescaped. `ancestors` are the ids of what holds it."""
    if type(value) is str:
        return _string(value)
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return _integer_text(value)
    if type(value) is float:
        return _float_text(value)
    if id(value) in ancestors:
        return _string(unserialisable(value, "it contains itself"))
    if len(ancestors) == MAX_DEPTH:
        return _string(unserialisable(value, f"nested deeper than {MAX_DEPTH} levels"))
    ancestors.add(id(value))
    known = value if type(value) in (dict, list) else plain(value)
    if type(known) is dict:
        text = _dict_text(known, ancestors)
    elif type(known) is list:
        text = "[" + ",".join([_text(item, ancestors) for item in known]) + "]"
    elif type(known) is frozenset:
        text = "[" + ",".join(_sorted_texts(known, ancestors)) + "]"
    else:
        text = _text(known, ancestors)
    ancestors.discard(id(value))
    return text


def _dict_text(value: dict[Any, object], ancestors: set[int]) -> str:
    value = value.copy()  # at once: a thread of the tool may still be filling it
    if any(type(key) is not str for key in value):
        value = _with_string_keys(value, ancestors)
    keys = sorted(value)
    keys.sort(key=len if "".join(keys).isascii() else _utf8_bytes)
    return "{" + ",".join([f"{_string(key)}:{_text(value[key], ancestors)}" for key in keys]) + "}"


def _utf8_bytes(key: str) -> int:
    return len(key.encode(errors="surrogatepass"))


def _with_string_keys(value: dict[Any, object], ancestors: set[int]) -> dict[str, object]:
    # A key that is a string keeps its name, so that {"1": a, 1: b} is the same in either order.
    pairs = [(key, item) for key, item in value.items() if type(key) is str]
    for key, item in value.items():
        if type(key) is not str:
            text = _text(key, ancestors)
            pairs.append((json.loads(text) if text[0] == '"' else text, item))
    return _distinct(pairs)


def _distinct(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """A dict of all `pairs`: the second "name" is called "name (2)"."""
    named: dict[str, object] = {}
    for key, item in pairs:
        name, count = key, 1
        while name in named:
            count += 1
            name = f"{key} ({count})"
        named[name] = item
    return named


def _sorted_texts(members: frozenset[Any], ancestors: set[int]) -> list[str]:
    if {type(member) for member in members} in ({int}, {str}):
        return [_text(member, ancestors) for member in sorted(members)]
    # Nothing else has an order for sure: sets compare as subsets, NaN with nothing.
    return sorted(_text(member, ancestors) for member in members)


def _integer_text(value: int) -> str:
    if value.bit_length() <= _MAX_INTEGER_BITS:
        try:
            return int.__repr__(value)
        except ValueError:  # this interpreter runs with a lower limit
            pass
    return _string(unserialisable(value, f"{value.bit_length()} bits"))


def _float_text(value: float) -> str:
    if -_LEAST_FLOAT_WITH_EXPONENT < value < _LEAST_FLOAT_WITH_EXPONENT:
        return float.__repr__(value) if value else "0.0"
    if math.isfinite(value):
        return f"{Decimal(float.__repr__(value)):f}.0"
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _escape(text: str) -> str:
    """JSON text with what jsonb refuses escaped; `text` itself if there is nothing."""
    if "\\u0000" not in text and (text.isascii() or not _REFUSED_CHARACTER.search(text)):
        return text
    return _REFUSED_IN_JSON.sub(_escaped, text)


def _escaped(refused: re.Match[str]) -> str:
    match refused[0]:
        case "\\\\":
            return refused[0]
        case "\\u0000":
            return f"{ESCAPE}0000"
        case character:
            return f"{ESCAPE}{ord(character):04x}"
