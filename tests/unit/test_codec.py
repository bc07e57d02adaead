"""The codec against itself and against what a real jsonb gives back."""

import base64
import dataclasses
import datetime as dt
import enum
import inspect
import json
import math
import sys
import types
import uuid
from array import array
from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from celeriac.codec import (
    ESCAPE,
    MAX_DEPTH,
    MAX_INTEGER_DIGITS,
    JsonValue,
    dumps,
    loads,
    loads_strict,
    stored_form,
)
from celeriac.errors import InvalidInput
from celeriac.plain import MAX_DESCRIPTION_CHARACTERS
from celeriac.secrets import forget_cached_secrets, register_secret
from tests.servers import DatabaseServer

Jsonb = Callable[[str], str]


@pytest.fixture(scope="module")
def jsonb(database_server: DatabaseServer) -> Iterator[Jsonb]:
    """What PostgreSQL prints after it stored a text as jsonb."""
    with (
        database_server.database(migrated=False) as url,
        psycopg.connect(url, autocommit=True) as connection,
    ):

        def stored(text: str) -> str:
            row = connection.execute("SELECT %s::jsonb::text", [text]).fetchone()
            assert row is not None
            return str(row[0])

        yield stored


@pytest.fixture(autouse=True)
def _no_secrets_left() -> Iterator[None]:
    yield
    forget_cached_secrets()


def exact(value: object) -> str:
    """A text that is the same for two values of equal types, order of keys and signs of zero."""
    return repr(value)


def without_order(value: object) -> object:
    """`value` with its types, so that 1, 1.0 and True differ; the order of keys left out."""
    if isinstance(value, dict):
        return {key: without_order(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_order(item) for item in value]
    return type(value), value


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    SMALL = 1


class Word(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass(frozen=True)
class Order:
    order_id: str
    amount: Decimal


class Refund(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    amount: Decimal
    at: dt.datetime
    proof: object = None


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError("no repr today")


class BrokenDict(dict[str, int]):
    def keys(self) -> Any:
        raise RuntimeError("no keys today")


class BrokenMapping(UserDict[str, int]):
    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys today")


class Endless:
    def __init__(self) -> None:
        self.tolist = lambda: self


Point = namedtuple("Point", ["x", "y"])

# ----------------------------------------------------------------------------- strategies

HARD_TEXT = st.text(
    st.one_of(
        st.characters(exclude_categories=()),  # lone surrogates included
        st.sampled_from(["\0", ESCAPE, "\\", '"', "u", "0", "d", "8", "\ud83d", "\ude00", "é"]),
    ),
    max_size=12,
)
FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([5e-324, 2.2250738585072014e-308, 1e308, 1.7976931348623157e308]),
    st.sampled_from([-0.0, 1e15, 1e16, -1e16, 1e22, 1e23, 9007199254740993.0, 1e-5, 1e-7]),
)
JSON_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), FINITE, HARD_TEXT)
JSON_VALUES = st.recursive(
    JSON_SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(HARD_TEXT, inner, max_size=5)
    ),
    max_leaves=12,
)
HASHABLE = st.one_of(
    JSON_SCALARS,
    st.floats(),
    st.decimals(allow_nan=False),
    st.binary(max_size=4),
    st.dates(),
    st.uuids(),
    st.frozensets(st.integers(), max_size=3),
    st.tuples(st.integers(), HARD_TEXT),
    st.sampled_from([*Colour, *Size, *Word, Path("a/b"), Order("A-1", Decimal("1.10"))]),
)
ANYTHING = st.recursive(
    st.one_of(
        HASHABLE,
        st.datetimes(timezones=st.none() | st.just(dt.UTC)),
        st.timedeltas(),
        st.complex_numbers(),
        st.builds(object),
        st.builds(Mute),
        st.builds(BrokenDict),
        st.builds(BrokenMapping, st.dictionaries(HARD_TEXT, st.integers(), max_size=2)),
        st.builds(Endless),
        st.builds(lambda: (n for n in [1])),
        st.builds(lambda: 10**5000),
        st.sampled_from([Decimal("NaN"), Decimal("sNaN")]),
        st.sampled_from([int, print, NotImplemented, ..., sys]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(deque),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.builds(Refund, amount=st.just(Decimal(1)), at=st.just(dt.datetime.min), proof=inner),
    ),
    max_leaves=10,
)

# -------------------------------------------------------------------------------- jsonb


# features: 003-15
@given(JSON_VALUES)
@example("\ud83d\ude00 are two lone surrogates, not one character")
@example({"\0": 1, "\\u0000": 2, f"{ESCAPE}0000": 3, ESCAPE: 4, "\ud800": 5})
@example([f"{ESCAPE}d800", "\\\0", "\\\\u0000", "\\\\\0"])
@example({"b": 1, "aa": 2, "é": 3, "zzz": 4, "": 5, "B": 6})
@settings(max_examples=300)
def test_what_json_can_say_is_read_back_from_jsonb_unchanged(jsonb: Jsonb, value: object) -> None:
    text = dumps(value)

    read_back = loads(jsonb(text))

    assert without_order(read_back) == without_order(value)
    assert exact(read_back) == exact(loads(text)), "differs before and after a crash"


@given(FINITE)
@settings(max_examples=500)
def test_every_finite_float_stays_that_float_in_jsonb(jsonb: Jsonb, value: float) -> None:
    read_back = loads(jsonb(dumps(value)))

    assert type(read_back) is float
    assert read_back == value
    assert exact(read_back) == exact(loads(dumps(value)))


@given(ANYTHING)
@settings(max_examples=300)
def test_saving_never_fails_and_jsonb_keeps_the_stored_form(jsonb: Jsonb, value: object) -> None:
    text = dumps(value)

    assert exact(loads(jsonb(text))) == exact(loads(text))
    assert dumps(loads(text)) == text, "the stored form has another stored form"


def test_jsonb_refuses_what_the_escape_is_for(jsonb: Jsonb) -> None:
    for refused in ('"\\u0000"', '"\\ud800"'):
        with pytest.raises(psycopg.errors.DataError):
            jsonb(refused)
        assert loads(jsonb(dumps(json.loads(refused)))) == json.loads(refused)


def test_the_order_of_keys_is_the_one_jsonb_prints(jsonb: Jsonb) -> None:
    value = {"beta": 1, "z": 2, "é": 3, "aa": 4, "\0": 5, "B": 6, "😀": 7}

    printed = jsonb(dumps(value))

    assert list(json.loads(printed)) == list(json.loads(dumps(value)))


# ------------------------------------------------------------------------------- the text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": [1, 2.5, None, True], "a": "ü"}, '{"a":"ü","b":[1,2.5,null,true]}'),
        ({"aa": 1, "b": 2}, '{"b":2,"aa":1}'),
        ([math.nan, math.inf, -math.inf], '["NaN","Infinity","-Infinity"]'),
        ([-0.0, 1e16, 1.0, 1e23], "[0.0,10000000000000000.0,1.0,100000000000000000000000.0]"),
        (["\0", "\ud800", ESCAPE], f'["{ESCAPE}0000","{ESCAPE}d800","{ESCAPE}ece1"]'),
        ([Decimal("1.10"), Decimal("1E+2"), Decimal("NaN")], '["1.10","1E+2","NaN"]'),
        (dt.datetime(2025, 1, 2, 3, 4, 5, 6, dt.UTC), '"2025-01-02T03:04:05.000006Z"'),
        (dt.date(2025, 1, 2), '"2025-01-02"'),
        (dt.timedelta(days=1, seconds=2), '"P1DT2S"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Path("a") / "b", '"a/b"'),
        ([Colour.RED, Size.SMALL, Word.YES], '["red",1,"yes"]'),
        (Order("A-1", Decimal("1.10")), '{"amount":"1.10","order_id":"A-1"}'),
        (
            Refund(amount=Decimal(1), at=dt.datetime(2025, 1, 2)),
            '{"at":"2025-01-02T00:00:00","proof":null,"amount":"1"}',
        ),
        (b"\xff\xfe?", f'"{base64.b64encode(bytes([255, 254, 63])).decode()}"'),
        ({10, 9, 1}, "[1,9,10]"),
        (frozenset({"b", "aa"}), '["aa","b"]'),
        ({None, 2, "a"}, '["a",2,null]'),
        ((1, (2,)), "[1,[2]]"),
        (Point(1, 2), "[1,2]"),
        (deque([1]), "[1]"),
        ({"a": 1}.values(), "[1]"),
        (OrderedDict(a=1), '{"a":1}'),
        (types.MappingProxyType({"a": 1}), '{"a":1}'),
        (array("d", [1, 2]), "[1.0,2.0]"),
        (pydantic.SecretStr("hush"), '"**********"'),
        ({}, "{}"),
        ([], "[]"),
    ],
)
def test_a_value_has_one_text(value: object, text: str) -> None:
    assert dumps(value) == text


def test_the_same_dict_in_another_order_has_the_same_text() -> None:
    assert dumps({"b": 1, "a": {"y": 1, "x": 2}}) == dumps({"a": {"x": 2, "y": 1}, "b": 1})


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({2: "a", None: "b", True: "c"}, {"2": "a", "null": "b", "true": "c"}),
        ({1.5: "a", (1, 2): "b", b"?": "c"}, {"1.5": "a", "[1,2]": "b", "Pw==": "c"}),
        ({Colour.RED: 1, Word.YES: 2}, {"red": 1, "yes": 2}),
        ({dt.date(2025, 1, 2): 1}, {"2025-01-02": 1}),
        ({1: "int", "1": "str"}, {"1": "str", "1 (2)": "int"}),
        ({math.inf: 1, "Infinity": 2}, {"Infinity": 2, "Infinity (2)": 1}),
    ],
)
def test_keys_become_strings_and_none_is_lost(
    value: dict[Any, object], stored: dict[str, JsonValue]
) -> None:
    assert stored_form(value) == stored


def test_keys_that_collide_get_the_same_names_in_either_order() -> None:
    assert dumps({1: "int", "1": "str"}) == dumps({"1": "str", 1: "int"})


# --------------------------------------------------------------- what JSON cannot say


def test_a_value_that_holds_itself_is_saved_up_to_there() -> None:
    value: dict[str, object] = {"a": 1}
    value["me"] = [value, value]

    assert stored_form(value) == {
        "a": 1,
        "me": ["[unserialisable dict: it contains itself]"] * 2,
    }


def test_a_value_that_stands_twice_but_not_in_itself_is_saved_twice() -> None:
    part = {"a": 1}

    assert stored_form([part, part]) == [part, part]


@pytest.mark.parametrize("too_deep", [1, 5000])
def test_what_is_nested_too_deep_becomes_a_mark(jsonb: Jsonb, too_deep: int) -> None:
    value: list[object] = []
    for _ in range(MAX_DEPTH - 1 + too_deep):
        value = [value]

    text = dumps(value)

    mark = f'"[unserialisable list: nested deeper than {MAX_DEPTH} levels]"'
    assert text == "[" * MAX_DEPTH + mark + "]" * MAX_DEPTH
    assert exact(loads(jsonb(text))) == exact(loads(text))


def test_the_deepest_allowed_value_is_saved_whole() -> None:
    value: list[object] = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]

    assert stored_form(value) == value


def test_saving_works_close_to_the_end_of_the_stack() -> None:
    value: list[object] = []
    for _ in range(MAX_DEPTH - 1):
        value = [value]

    def dumps_below(frames: int) -> str:
        return dumps(value) if frames == 0 else dumps_below(frames - 1)

    text = dumps_below(sys.getrecursionlimit() - len(inspect.stack(0)) - 100)

    # Up to Python 3.11 its repr runs out of stack as well, which later ones count apart.
    assert text.startswith('"[unserialisable list: ')


def test_an_int_that_cannot_be_read_back_is_described(jsonb: Jsonb) -> None:
    largest = 2**14_284 - 1
    assert len(str(largest)) == MAX_INTEGER_DIGITS

    assert loads(jsonb(dumps([largest, -largest]))) == [largest, -largest]
    assert stored_form(10**MAX_INTEGER_DIGITS) == "[unserialisable int: 14285 bits]"


def test_an_int_is_saved_where_the_interpreter_converts_fewer_digits() -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        text = dumps(10**1000)
    finally:
        sys.set_int_max_str_digits(limit)

    assert text == '"[unserialisable int: 3322 bits]"'


def test_an_unknown_object_is_described_without_its_address() -> None:
    assert stored_form(object()) == "[unserialisable object: <object object>]"


def test_a_description_is_bounded_and_its_secrets_are_not_cut_in_half() -> None:
    register_secret("hunter2hunter2hunter2")

    class Large:
        def __repr__(self) -> str:
            return "x" * (MAX_DESCRIPTION_CHARACTERS - 12) + "hunter2hunter2hunter2" + "y" * 10**6

    text = dumps([Large(), type("L" * 10_000, (Large,), {})()])

    assert len(text) < 2 * (MAX_DESCRIPTION_CHARACTERS + 120)
    assert "hunter2" not in text


def test_an_object_whose_repr_raises_is_described() -> None:
    assert stored_form([Mute()]) == ["[unserialisable Mute: its repr raises RuntimeError]"]


def test_an_iterator_is_described_and_not_read() -> None:
    generator = (n for n in range(3))
    numbers = iter([0, 1, 2])

    described = dumps([generator, numbers])

    assert "unserialisable generator" in described
    assert "unserialisable list_iterator" in described
    assert list(generator) == list(numbers) == [0, 1, 2]


def test_one_bad_field_of_a_model_does_not_cost_the_others() -> None:
    class Upload(pydantic.BaseModel):
        name: str
        body: bytes

    refund = Refund(amount=Decimal("1.10"), at=dt.datetime(2025, 1, 2))
    refund.proof = refund

    assert stored_form(Upload(name="a", body=b"\xff")) == {"name": "a", "body": "/w=="}
    assert "RecursionError" not in dumps(refund)


def test_a_dict_that_changes_while_it_is_saved_is_saved_as_it_was() -> None:
    result: dict[str, object] = {}

    class Clears:
        def __repr__(self) -> str:
            result.clear()
            return "cleared"

    result.update(a=Clears(), b=1)

    assert stored_form(result) == {"a": "[unserialisable Clears: cleared]", "b": 1}


# ------------------------------------------------------------------------------ secrets


def test_what_is_stored_holds_no_secret_in_values_keys_or_escapes() -> None:
    register_secret('pass"word\0\ud800\n1')

    text = dumps({'my pass"word\0\ud800\n1': ['pass"word\0\ud800\n1', 1]})

    assert loads(text) == {"my [redacted]": ["[redacted]", 1]}


def test_two_keys_that_redaction_makes_equal_are_both_kept(jsonb: Jsonb) -> None:
    register_secret("first-secret-1")
    register_secret("other-secret-2")

    text = dumps({"first-secret-1": 1, "other-secret-2": 2, "zz": 3})

    assert loads(text) == {"[redacted]": 1, "[redacted] (2)": 2, "zz": 3}
    assert exact(loads(jsonb(text))) == exact(loads(text))


# --------------------------------------------------------------------------------- loads


def test_loads_takes_the_bytes_of_the_database_driver() -> None:
    assert loads(dumps({"a": "\0ü"}).encode()) == {"a": "\0ü"}


def test_loads_leaves_an_escape_character_that_dumps_did_not_write() -> None:
    assert loads(f'"{ESCAPE}zzzz {ESCAPE}0041 {ESCAPE}"') == f"{ESCAPE}zzzz {ESCAPE}0041 {ESCAPE}"


def test_the_stored_form_is_a_copy() -> None:
    live = {"a": [1]}

    stored = stored_form(live)
    live["a"].append(2)

    assert stored == {"a": [1]}


# --------------------------------------------------------------------------- loads_strict


@given(JSON_VALUES)
def test_strict_reading_accepts_all_json(value: object) -> None:
    # Two lone surrogates in a row are one character to every reader of ASCII JSON.
    text = json.dumps(value, ensure_ascii=False)

    assert without_order(loads_strict(text)) == without_order(value)


def test_strict_reading_takes_the_escape_character_as_it_is() -> None:
    assert loads_strict(f'"{ESCAPE}0000"') == f"{ESCAPE}0000"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "b": {"x": 1, "x": 2}}', r"the key 'x' stands twice in one object \(/b\)"),
        ('{"a": 1, "a": 1}', r"the key 'a' stands twice in one object \(at the top\)"),
        ('{"a/b": [1, 1e400]}', r"the number '1e400' is out of range, .* \(/a~1b/1\)"),
        ("[-1e400]", r"the number '-1e400' is out of range, .* \(/0\)"),
        ('{"amount": NaN}', r"NaN is not a JSON number \(/amount\)"),
        ("[-Infinity]", r"-Infinity is not a JSON number \(/0\)"),
        ("NaN", r"NaN is not a JSON number \(at the top\)"),
        ("[1" + "0" * 4300 + "]", r"an integer has 4301 digits, at most 4300 .* \(/0\)"),
        ("[-1" + "0" * 4300 + "]", r"an integer has 4301 digits, at most 4300 .* \(/0\)"),
        ("[" * 101 + "]" * 101, r"nested deeper than 100 levels \((/0)+…\)"),
        ("[" * 100_000 + "]" * 100_000, "nested deeper than 100 levels"),
        ('{"a":\n 1,}', "line 2 column"),
        ("", "no JSON: Expecting value at line 1 column 1"),
        ('{"a": 1} and more', "no JSON: Extra data at line 1 column 10"),
        (b'"\xff"', "byte 1 is not UTF-8"),
    ],
)
def test_strict_reading_refuses_and_says_where(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        loads_strict(text)


def test_a_refusal_quotes_a_bounded_part_without_secrets() -> None:
    register_secret("hunter2hunter2")
    key = "hunter2hunter2" + "x" * 10_000

    with pytest.raises(InvalidInput) as refusal:
        loads_strict(json.dumps({key: 0})[:-1] + f', "{key}": 1}}')

    assert len(str(refusal.value)) < 300
    assert "hunter2" not in str(refusal.value)
