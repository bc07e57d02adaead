"""A reference is what is written as one, and nothing else is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput
from celeriac.plan.references import Reference, filled, references, result_of

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "$result", "at", "$value", "result"]), inner)
    ),
    max_leaves=8,
)


@given(json_values)
def test_a_result_is_data_whatever_it_looks_like(result: Any) -> None:
    assert filled({"x": [result_of("a")]}, {"a": result}) == {"x": [result]}


@given(json_values)
def test_a_literal_value_stays_as_it_is(value: Any) -> None:
    template: JsonValue = {"x": {"$value": value}}

    assert filled(template, {}) == {"x": value}
    assert list(references(template)) == []


def test_a_part_of_a_result_is_taken() -> None:
    results: dict[str, JsonValue] = {"a": {"items": [{"price": 3}], "0": "zero"}}

    assert filled(result_of("a", "items", 0, "price"), results) == 3
    assert filled(result_of("a", "0"), results) == "zero"


@pytest.mark.parametrize("at", [["item"], ["items", 1], ["items", "0"], ["items", 0, "price", "x"]])
def test_a_part_that_is_not_there_is_named(at: list[str | int]) -> None:
    with pytest.raises(InvalidInput, match="the result of step a has nothing at") as refused:
        filled(result_of("a", *at), {"a": {"items": [{"price": 3}]}})

    assert "; there is" in str(refused.value)


def test_references_are_found_with_their_places() -> None:
    template: JsonValue = {"x": [1, {"y": result_of("a")}], "z": result_of("b", "k", 2)}

    assert list(references(template)) == [
        (("x", 1, "y"), Reference("a")),
        (("z",), Reference("b", ("k", 2))),
    ]


@pytest.mark.parametrize(
    "template",
    [
        {"$result": 1},
        {"$result": "a", "at": "items"},
        {"$result": "a", "at": [-1]},
        {"$result": "a", "at": [True]},
        {"$result": "a", "default": 0},
        {"$value": 1, "more": 2},
        {"$value": 1, "$result": "a"},
    ],
)
def test_what_looks_like_a_reference_and_is_none_is_refused(template: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="is no reference"):
        list(references({"x": [template]}))
