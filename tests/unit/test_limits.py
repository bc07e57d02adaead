import math
from typing import Any

import pytest

from celeriac.codec import dumps, loads
from celeriac.errors import InvalidAgent
from celeriac.limits import Limits, Use


# features: 003-03
@pytest.mark.parametrize(
    ("limits", "use", "sentence"),
    [
        (Limits(steps=5), Use(steps=5), "has used 5 of the 5 steps"),
        (Limits(tool_calls=2), Use(tool_calls=3), "has used 3 of the 2 tool_calls"),
        (
            Limits(tokens=100),
            Use(input_tokens=80, output_tokens=40),
            "has used 120 of the 100 tokens",
        ),
        (Limits(wall_seconds=60), Use(wall_seconds=61.25), "has used 61.25 of the 60 wall_seconds"),
    ],
)
def test_the_limit_that_stops_a_run_is_named_with_its_value_and_the_use(
    limits: Limits, use: Use, sentence: str
) -> None:
    assert sentence in str(limits.exceeded(use))


# features: 003-03
def test_a_run_may_use_all_that_its_limits_allow() -> None:
    limits = Limits(steps=5, tool_calls=2, tokens=100, wall_seconds=60)
    before_the_last_step = Use(
        steps=4, tool_calls=2, input_tokens=60, output_tokens=39, wall_seconds=59.9
    )

    assert limits.exceeded(before_the_last_step) is None
    assert limits.exceeded(Use()) is None


@pytest.mark.parametrize("name", ["steps", "tool_calls", "tokens", "wall_seconds", "corrections"])
@pytest.mark.parametrize("value", [0, -1, True, None, "5", math.nan, math.inf])
def test_a_limit_that_is_no_positive_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidAgent, match=f"limit {name} is "):
        Limits(**{name: value})


def test_only_time_has_fractions() -> None:
    assert Limits(wall_seconds=0.5).wall_seconds == 0.5
    with pytest.raises(InvalidAgent, match="whole number"):
        Limits(steps=1.5)  # type: ignore[arg-type]


def test_limits_survive_being_stored() -> None:
    limits = Limits(steps=7, wall_seconds=1.5)
    stored: Any = loads(dumps(limits.to_json()))

    assert Limits.from_json(stored) == limits


def test_limits_stored_by_another_version_are_read() -> None:
    assert Limits.from_json({"steps": 7, "introduced_later": 1}) == Limits(steps=7)


def test_stored_limits_are_checked_like_any_other() -> None:
    with pytest.raises(InvalidAgent, match="limit steps is 'many'"):
        Limits.from_json({"steps": "many"})
