"""What a schema alone tells of a value agrees with the type, for whoever has no code of it."""

from decimal import Decimal
from typing import Annotated

from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter, ValidationError

from celeriac.schemas import problems_by_schema
from celeriac.shapes import Shape

NUMBERS = st.from_regex(r"-?[0-9]{1,6}(\.[0-9]{1,6})?", fullmatch=True)
DIGITS = st.none() | st.integers(0, 8)


@given(NUMBERS, DIGITS, DIGITS)
def test_a_decimal_fits_the_schema_exactly_if_it_fits_the_type(
    number: str, max_digits: int | None, decimal_places: int | None
) -> None:
    type_ = Annotated[Decimal, Field(max_digits=max_digits, decimal_places=decimal_places)]
    try:
        TypeAdapter(type_).validate_python(number)
        is_taken = True
    except ValidationError:
        is_taken = False

    problems = problems_by_schema(number, Shape(type_).exact_schema)

    assert (problems == []) is is_taken
