"""What is refused of a plan before anything is written, and what layers are."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.errors import InvalidInput, InvalidPlan
from celeriac.plan import Plan, PlanStep, graph, result_of
from celeriac.plan.plan import MAX_NEEDS, MAX_PLAN_BYTES, MAX_RETRIES, MAX_STEPS
from tests.plans.strategies import plans


def step(step_id: str, *needs: str, **more: Any) -> PlanStep:
    return PlanStep(step_id, **{"tool": "work", "needs": needs, **more})


def refusal(steps: Sequence[PlanStep], **more: Any) -> str:
    with pytest.raises(InvalidPlan) as refused:
        Plan(steps, **more)
    return str(refused.value)


@given(plans())
def test_a_plan_is_the_same_after_it_was_stored(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())

    assert again == plan
    assert again.plan_hash == plan.plan_hash


@given(plans())
def test_each_step_is_in_the_layer_right_after_the_last_that_it_needs(plan: Plan) -> None:
    layers = graph.layers(plan.needs)
    layer_of = {step_id: number for number, layer in enumerate(layers) for step_id in layer}

    assert sorted(layer_of) == sorted(plan.needs)
    for step_id, needs in plan.needs.items():
        assert layer_of[step_id] == max((layer_of[need] + 1 for need in needs), default=0)


@given(plans(), st.data())
def test_a_cycle_is_named(plan: Plan, data: st.DataObject) -> None:
    ancestors = graph.ancestors(plan.needs)
    last = data.draw(st.sampled_from(plan.steps)).id
    first = data.draw(st.sampled_from(sorted({last} | ancestors[last])))
    steps = [
        replace(each, needs=tuple({*each.needs, last})) if each.id == first else each
        for each in plan.steps
    ]

    cycle = graph.cycle_of({each.id: each.needs for each in steps})

    needs = {each.id: each.needs for each in steps}
    assert cycle[0] == cycle[-1]
    assert len(cycle) > 1
    assert len({*cycle}) == len(cycle) - 1
    assert all(following in needs[each] for each, following in pairwise(cycle))
    assert " → ".join(cycle) in refusal(steps)


@given(plans(), st.data())
def test_an_unknown_need_is_named(plan: Plan, data: st.DataObject) -> None:
    broken = data.draw(st.sampled_from(plan.steps)).id
    steps = [
        replace(each, needs=(*each.needs, "nobody")) if each.id == broken else each
        for each in plan.steps
    ]

    assert f"step {broken} needs nobody, which is no step of the plan" in refusal(steps)


@given(plans(), st.data())
def test_an_id_that_stands_twice_is_named(plan: Plan, data: st.DataObject) -> None:
    twice = data.draw(st.sampled_from(plan.steps))

    assert f"two steps have the id {twice.id}" in refusal([*plan.steps, replace(twice, needs=())])


@given(plans(), st.data())
def test_a_reference_to_what_does_not_come_before_is_named(plan: Plan, data: st.DataObject) -> None:
    ancestors = graph.ancestors(plan.needs)
    broken = data.draw(st.sampled_from(plan.steps)).id
    other = data.draw(st.sampled_from(sorted(plan.needs.keys() - ancestors[broken])))
    steps = [
        replace(each, arguments={"deep": [{"in": result_of(other)}]}) if each.id == broken else each
        for each in plan.steps
    ]

    assert f"step {broken} refers to the result of {other}, but does not come after it" in refusal(
        steps
    )


def test_a_reference_may_reach_back_over_several_steps() -> None:
    Plan([step("a"), step("b", "a"), step("c", "b", arguments={"x": result_of("a")})])


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "it has 0 steps"),
        ([step(f"s{number}") for number in range(MAX_STEPS + 1)], f"it has {MAX_STEPS + 1} steps"),
        ([step("a b")], "'a b' cannot be a step's id"),
        ([step("")], "'' cannot be a step's id"),
        ([step("a", tool=None)], "step a must have exactly one of tool, agent and question"),
        ([step("a", agent="b")], "step a must have exactly one of tool, agent and question"),
        ([step("a", tool=" ")], "step a: its tool, agent or question is empty"),
        ([step("a", arguments=[1])], "step a: the arguments of a tool are an object"),
        ([step("a", retries=-1)], "step a: retries=-1 is none of 0 to"),
        ([step("a", retries=MAX_RETRIES + 1)], f"none of 0 to {MAX_RETRIES}"),
        (
            [step("a", tool=None, agent="b", retries=1)],
            "step a: only a tool's call can be known to have had no effect",
        ),
        ([step("a", "a")], "a → a"),
        ([step("a"), step("b", "a", "a")], "step b names the same step twice"),
        (
            [step("a", arguments={"x": {"$result": "b"}})],
            "step a refers to the result of b, which is no step of the plan",
        ),
        (
            [*(step(f"s{number}") for number in range(MAX_NEEDS + 1)),
             step("z", *(f"s{number}" for number in range(MAX_NEEDS + 1)))],
            f"step z needs {MAX_NEEDS + 1} steps",
        ),
        ([step("a", arguments={"x": "y" * MAX_PLAN_BYTES})], f"at most {MAX_PLAN_BYTES} are"),
    ],
)  # fmt: skip
def test_what_is_refused(steps: list[PlanStep], said: str) -> None:
    assert said in refusal(steps)


def test_the_output_refers_to_steps_of_the_plan_only() -> None:
    said = refusal([step("a")], output={"total": result_of("b")})

    assert "the output refers to the result of b, which is no step of the plan" in said


def test_all_problems_are_told_at_once() -> None:
    said = refusal([step("a", "x"), step("a"), step("b", "y")])

    assert "two steps have the id a" in said
    assert "step a needs x" in said
    assert "step b needs y" in said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "steps: required, but missing"),
        ({"steps": [{"tool": "x"}]}, "steps[0].id: required, but missing"),
        ({"steps": [{"id": "a", "tool": "x", "need": []}]}, "steps[0].need: unknown"),
        ({"steps": [{"id": "a", "tool": "x", "on_failure": "?"}]}, "steps[0].on_failure"),
        ({"steps": [], "checkpoint_interval": "never"}, "checkpoint_interval"),
        ({"steps": [{"id": "a", "tool": "x", "needs": ["b"]}]}, "step a needs b, which is no step"),
    ],
)
def test_json_that_is_no_plan_is_refused_with_the_place(value: object, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Plan.from_json(value)

    assert said in str(refused.value)


@given(plans(), st.data())
def test_a_step_is_another_one_with_whatever_it_depends_on(plan: Plan, data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from(plan.steps)).id
    edited = Plan(
        [
            replace(each, arguments={"number": -1}) if each.id == changed else each
            for each in plan.steps
        ]
    )

    before, after = graph.identities(plan.steps), graph.identities(edited.steps)

    ancestors = graph.ancestors(plan.needs)
    assert {step_id for step_id in before if before[step_id] != after[step_id]} == {
        step_id for step_id in before if step_id == changed or changed in ancestors[step_id]
    }
