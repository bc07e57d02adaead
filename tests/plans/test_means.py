"""What a plan's runner refuses because it could not do it, as far as that is known."""

from dataclasses import dataclass
from typing import Any

import pytest

from celeriac import tool
from celeriac.errors import InvalidPlan
from celeriac.plan import Plan, PlanStep, result_of
from celeriac.plan.means import Mean, Means
from celeriac.results import result_schema


@dataclass(frozen=True)
class Found:
    title: str
    prices: list[int]


@tool(effect="none")
def search(query: str, limit: int = 3) -> list[Found]:
    """Search."""
    raise NotImplementedError


@tool(effect="none")
def add(numbers: list[int], note: str | None = None) -> int:
    """Add."""
    raise NotImplementedError


@tool(effect="none")
def describe(what: dict[str, int]):  # type: ignore[no-untyped-def]  # it does not say
    """Describe."""


MEANS = Means(
    {
        each.name: Mean(each.parameters.shape.exact_schema, result_schema(each.function))
        for each in (search, add, describe)
    },
    {"writer": Mean({"type": "string"}, {"type": "string"})},
    has_model=False,
)
FIRST = PlanStep("first", tool="search", arguments={"query": "x"})


def then(step_id: str = "then", **step: Any) -> PlanStep:
    return PlanStep(step_id, needs=["first"], **step)


def said_of(*steps: PlanStep) -> str:
    plan = Plan([FIRST, *steps])
    said = [said_by(MEANS, plan), said_by(Means.from_json(MEANS.to_json()), plan)]
    assert said[0] == said[1], "what a worker registers is JSON, and must come to the same"
    return said[0]


def said_by(means: Means, plan: Plan) -> str:
    try:
        means.check(plan)
    except InvalidPlan as refused:
        return str(refused)
    return ""


@pytest.mark.parametrize(
    "step",
    [
        then(tool="search", arguments={"query": result_of("first", 0, "title")}),
        then(tool="search", arguments={"query": "x", "limit": 1}),
        then(tool="add", arguments={"numbers": result_of("first", 0, "prices")}),
        then(tool="add", arguments={"numbers": [1, result_of("first", 0, "prices", 0)]}),
        then(tool="add", arguments={"numbers": [], "note": result_of("first", 0, "title")}),
        then(tool="describe", arguments={"what": {"a": result_of("first", 0, "prices", 1)}}),
        then(tool="describe", arguments={"what": {"$value": {"$result": 1}}}),
        then(agent="writer", arguments=result_of("first", 0, "title")),
        then(tool="search", arguments={"query": result_of("first", 0, "not declared")}),
    ],
    ids=str,
)
def test_what_may_fit_is_let_through(step: PlanStep) -> None:
    assert said_of(step) == ""


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (then(tool="serch"), "step then: there is no tool serch; known are add, describe, search"),
        (then(agent="boss"), "step then: there is no agent boss; known are writer"),
        (then(question="Why?"), "step then: there is no model to ask"),
        (then(tool="search"), "step then: query: required, but missing"),
        (then(tool="search", arguments={"query": 1}), "step then: query: 1 is not a string"),
        (
            then(tool="search", arguments={"query": [result_of("first")]}),
            "is not a string",
        ),
        (
            then(tool="search", arguments={"query": "x", "limits": result_of("first")}),
            "step then: limits: unknown; expected are query, limit",
        ),
        (
            then(tool="search", arguments={"query": result_of("first", 0, "prices")}),
            "step then: query: array of the result of first cannot be string",
        ),
        (
            then(tool="search", arguments={"query": result_of("first")}),
            "step then: query: array of the result of first cannot be string",
        ),
        (
            then(tool="add", arguments={"numbers": [1, result_of("first", 0, "title")]}),
            "step then: numbers[1]: string of the result of first cannot be integer",
        ),
        (
            then(tool="search", arguments={"query": result_of("first", "title")}),
            "step then: query: the result of first has nothing at title",
        ),
        (
            then(agent="writer", arguments=result_of("first", 0)),
            "step then: object of the result of first cannot be string",
        ),
        (then(agent="writer", arguments=3), "step then: 3 is not a string"),
    ],
    ids=str,
)
def test_what_cannot_fit_is_named(step: PlanStep, said: str) -> None:
    assert said in said_of(step)


def test_all_problems_are_told_at_once() -> None:
    said = said_of(then(tool="serch"), then("other", agent="boss"))

    assert "step then: there is no tool serch" in said
    assert "step other: there is no agent boss" in said


def test_a_result_without_a_type_may_be_anything() -> None:
    assert result_schema(describe.function) == {}
