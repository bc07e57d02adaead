"""What starts when, what a failure means for the rest, and what stands in another version."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput
from celeriac.plan import OnFailure, Plan, PlanStep, graph, result_of
from celeriac.plan.progress import Progress, StepState, kept
from tests.plans.strategies import plans, played

DIAMOND = [
    PlanStep("a", tool="work"),
    PlanStep("b", tool="work", needs=["a"]),
    PlanStep("c", tool="work", needs=["a"]),
    PlanStep("d", tool="work", needs=["b", "c"]),
]
FAILURE: dict[str, JsonValue] = {"kind": "failed", "message": "it has failed"}
on_failures: st.SearchStrategy[OnFailure] = st.sampled_from(["fail", "stop", "skip"])


@given(plans(), st.data())
def test_each_step_starts_once_after_all_that_it_needs(plan: Plan, data: st.DataObject) -> None:
    progress, started = played(plan, lambda running: data.draw(st.sampled_from(running)))

    order = [step_id for together in started for step_id in together]
    assert sorted(order) == sorted(plan.needs)
    for step_id, needs in plan.needs.items():
        assert all(order.index(need) < order.index(step_id) for need in needs)
    assert {*progress.states.values()} == {StepState.COMPLETED}
    last = plan.needs.keys() - {need for needs in plan.needs.values() for need in needs}
    assert progress.output() == {step_id: f"result of {step_id}" for step_id in last}


@given(plans(), st.data())
def test_per_layer_starts_one_layer_at_a_time(plan: Plan, data: st.DataObject) -> None:
    plan = replace(plan, checkpoint_interval="per_layer")

    _, started = played(plan, lambda running: data.draw(st.sampled_from(running)))

    assert started == graph.layers(plan.needs)


def test_per_step_starts_a_step_while_its_layer_goes_on() -> None:
    progress = Progress(Plan([*DIAMOND, PlanStep("e", tool="work", needs=["b"])]))
    progress.due()
    progress.completed("a", 1)
    progress.due()

    progress.completed("b", 2)

    assert [step.id for step in progress.due()] == ["e"]
    assert progress.states["c"] is StepState.RUNNING


@given(plans(on_failure=on_failures), st.data())
def test_nothing_starts_that_needs_what_has_failed(plan: Plan, data: st.DataObject) -> None:
    failing = data.draw(st.sets(st.sampled_from(sorted(plan.needs))))

    progress, started = played(
        plan, lambda running: data.draw(st.sampled_from(running)), failing.__contains__
    )

    ancestors = graph.ancestors(plan.needs)
    order = {step_id for together in started for step_id in together}
    failed = {*progress.of_state(StepState.FAILED)}
    stops = any(step.on_failure == "stop" for step in plan.steps if step.id in failed)
    assert failed == order & failing
    assert not any(ancestors[step_id] & failed for step_id in order)
    left = plan.needs.keys() - order
    assert {*progress.of_state(StepState.SKIPPED)} == left
    assert stops or all(ancestors[step_id] & failed for step_id in left)
    assert progress.is_failed == any(
        step.on_failure != "skip" for step in plan.steps if step.id in failed
    )


@given(plans(on_failure=on_failures), st.data())
def test_the_same_ends_in_the_same_order_start_the_same(plan: Plan, data: st.DataObject) -> None:
    failing = data.draw(st.sets(st.sampled_from(sorted(plan.needs))))
    chosen: list[str] = []

    def choose(running: list[str]) -> str:
        chosen.append(data.draw(st.sampled_from(running)))
        return chosen[-1]

    _, started = played(plan, choose, failing.__contains__)
    again = iter(chosen)

    assert played(plan, lambda _: next(again), failing.__contains__)[1] == started


# features: 004-29
@given(plans(on_failure=on_failures), st.data())
def test_an_exclusive_step_runs_alone(plan: Plan, data: st.DataObject) -> None:
    ids = sorted(plan.needs)
    alone, failing = (data.draw(st.sets(st.sampled_from(ids))) for _ in range(2))
    steps = [replace(step, tool="lock") if step.id in alone else step for step in plan.steps]
    plan = replace(plan, steps=steps)

    def choose(running: list[str]) -> str:
        assert len(running) == 1 or not alone & {*running}
        return data.draw(st.sampled_from(running))

    progress, _ = played(plan, choose, failing.__contains__, Progress(plan, {"lock"}))

    left = {StepState.WAITING, StepState.RUNNING} & {*progress.states.values()}
    assert not left


def test_siblings_of_a_failed_step_go_on_to_their_end() -> None:
    progress = Progress(Plan([*DIAMOND, PlanStep("e", tool="work", needs=["c"])]))
    progress.due()
    progress.completed("a", 1)
    progress.due()

    progress.failed("b", FAILURE)

    assert not progress.is_over
    progress.completed("c", 2)
    assert [step.id for step in progress.due()] == ["e"]
    progress.completed("e", 3)
    assert progress.is_over
    assert progress.is_failed
    assert progress.of_state(StepState.SKIPPED) == ["d"]


def test_after_stop_nothing_starts_and_what_runs_goes_on() -> None:
    stop, *rest = DIAMOND[1:]
    progress = Progress(Plan([DIAMOND[0], replace(stop, on_failure="stop"), *rest]))
    progress.due()
    progress.completed("a", 1)
    progress.due()

    progress.failed("b", FAILURE)

    assert not progress.is_over
    progress.completed("c", 2)
    assert progress.is_over
    assert progress.due() == []


def test_a_plan_completes_without_what_may_be_skipped() -> None:
    progress = Progress(
        Plan(
            [
                PlanStep("a", tool="work"),
                PlanStep("b", tool="work", on_failure="skip"),
                PlanStep("c", tool="work", needs=["b"]),
            ]
        )
    )
    progress.due()
    progress.failed("b", FAILURE)
    progress.completed("a", 1)

    assert progress.is_over
    assert not progress.is_failed
    assert progress.output() == {"a": 1}


def test_a_step_whose_arguments_are_not_there_has_failed_and_does_not_start() -> None:
    progress = Progress(
        Plan(
            [
                PlanStep("a", tool="work"),
                PlanStep("b", tool="work", needs=["a"], arguments={"x": result_of("a", "price")}),
                PlanStep("c", tool="work", needs=["b"]),
            ]
        )
    )
    progress.due()
    progress.completed("a", {"prize": 1})

    assert progress.due() == []
    assert progress.is_over
    assert progress.is_failed
    assert "has nothing at price" in str(progress.errors["b"]["message"])
    assert progress.states["c"] is StepState.SKIPPED


def test_the_output_is_made_of_results() -> None:
    progress = Progress(
        Plan([PlanStep("a", tool="work")], output={"price": result_of("a", 0), "unit": "EUR"})
    )
    progress.due()
    progress.completed("a", [3])

    assert progress.output() == {"price": 3, "unit": "EUR"}


def test_an_output_that_refers_to_what_was_skipped_is_refused() -> None:
    progress = Progress(
        Plan([PlanStep("a", tool="work", on_failure="skip")], output=result_of("a"))
    )
    progress.due()
    progress.failed("a", FAILURE)

    with pytest.raises(InvalidInput, match="step a has no result"):
        progress.output()


@given(plans(), st.data())
def test_what_is_kept_does_not_start_again(plan: Plan, data: st.DataObject) -> None:
    failing = data.draw(st.sets(st.sampled_from(sorted(plan.needs))))
    choose = lambda running: data.draw(st.sampled_from(running))  # noqa: E731 - the same twice
    earlier, _ = played(plan, choose, failing.__contains__)
    stands = kept(plan, plan, earlier.results)
    progress = Progress(plan)
    for step_id in stands:
        progress.keep(step_id, earlier.results[step_id])

    progress, started = played(plan, choose, progress=progress)

    order = [step_id for together in started for step_id in together]
    assert {*stands} == {*earlier.results}
    assert {*order} == plan.needs.keys() - {*stands}
    assert {*progress.states.values()} == {StepState.COMPLETED}


@given(plans(), st.data())
def test_in_an_edited_plan_only_what_is_the_same_is_kept(plan: Plan, data: st.DataObject) -> None:
    changed = data.draw(st.sampled_from(plan.steps)).id
    edited = replace(
        plan,
        steps=[
            replace(step, arguments={"number": -1}) if step.id == changed else step
            for step in plan.steps
        ],
    )
    results = {step.id: "done" for step in plan.steps}

    stands = kept(edited, plan, results)

    ancestors = graph.ancestors(plan.needs)
    assert {*stands} == {
        step_id
        for step_id in plan.needs
        if step_id != changed and changed not in ancestors[step_id]
    }
    for step_id in stands:  # they can be kept in this order
        assert {*plan.needs[step_id]} <= {*stands[: stands.index(step_id)]}


def test_a_step_that_is_tried_more_often_is_still_the_same() -> None:
    plan = Plan(DIAMOND)
    patient = replace(plan, steps=[replace(step, retries=3) for step in DIAMOND])

    assert kept(patient, plan, {"a": 1}) == ["a"]
