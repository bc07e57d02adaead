"""The workflow that executes plans, driven by hand: what it asks for, and what comes of it."""

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac import Agent, tool
from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput, InvalidPlan
from celeriac.plan import Plan, PlanStep, graph, result_of
from celeriac.plan.log import KEPT
from celeriac.plan.references import filled
from celeriac.plan.runner import PlanRunner
from celeriac.workflows.entry import Asked, EndKind, Entry, EntryKind
from tests.plans.log import Log
from tests.plans.strategies import plans


@tool(effect="none")
def work(number: int = 0, of: list[str] | None = None) -> str:
    """Work."""
    raise NotImplementedError


@tool(effect="none")
def untyped(value: Any) -> Any:
    """Take anything."""
    raise NotImplementedError


@tool(effect="none", exclusive=True)
def lock(number: int = 0) -> str:
    """Work, while nobody else does."""
    raise NotImplementedError


writer = Agent("writer", "openai:gpt-5", input=str)
RUNNER = PlanRunner("plans", [work, untyped], [writer], model="openai:gpt-5")

LAYERS = [
    PlanStep("a", tool="work"),
    PlanStep("b", tool="work"),
    PlanStep("c", tool="work", needs=["a", "b"]),
]


def end_of(log: Log) -> tuple[EndKind, JsonValue]:
    assert log.turn.end is not None
    return log.turn.end.kind, log.turn.end.value


def failure_of(log: Log) -> str:
    assert log.turn.end is not None
    assert log.turn.end.kind is EndKind.FAILED
    assert log.turn.end.error is not None
    return str(log.turn.end.error["message"])


@given(plans(), st.data())
def test_each_step_is_asked_for_once_with_the_results_that_it_refers_to(
    plan: Plan, data: st.DataObject
) -> None:
    log = Log(RUNNER, plan.to_json())
    order: list[str] = []
    while log.turn.end is None:
        order.append(data.draw(st.sampled_from(sorted(log.open))))
        log.end(order[-1], f"result of {order[-1]}")

    assert sorted(order) == sorted(plan.needs)
    asked = {entry.asked.label: entry.asked for entry in log.entries.values()}
    for step in plan.steps:
        arguments = asked[step.id].arguments
        assert isinstance(arguments, dict)
        assert isinstance(step.arguments, dict)
        wanted = filled(step.arguments, {need: f"result of {need}" for need in plan.needs})
        assert arguments == {"of": None, **cast("dict[str, JsonValue]", wanted)}
    last = plan.needs.keys() - {need for needs in plan.needs.values() for need in needs}
    assert end_of(log) == (
        EndKind.COMPLETED,
        {step_id: f"result of {step_id}" for step_id in last},
    )


@given(plans(), st.data())
def test_per_layer_wakes_once_for_each_layer(plan: Plan, data: st.DataObject) -> None:
    log = Log(RUNNER, replace(plan, checkpoint_interval="per_layer").to_json())
    for layer in graph.layers(plan.needs):
        assert sorted(log.open) == sorted(layer)
        for step_id in data.draw(st.permutations(layer)):
            log.end(step_id, "done")

    assert end_of(log)[0] is EndKind.COMPLETED
    assert log.wakes == len(graph.layers(plan.needs))


@given(plans(), st.data())
def test_per_step_wakes_at_each_end(plan: Plan, data: st.DataObject) -> None:
    log = Log(RUNNER, replace(plan, checkpoint_interval="per_step").to_json())
    while log.turn.end is None:
        log.end(data.draw(st.sampled_from(sorted(log.open))), "done")

    assert log.wakes == len(plan.steps)


@pytest.mark.parametrize("interval", ["per_step", "per_layer"])
def test_a_failed_step_lets_its_siblings_end_and_then_fails_the_plan(interval: Any) -> None:
    log = Log(RUNNER, Plan(LAYERS, checkpoint_interval=interval).to_json())

    log.end("a", error="out of stock")
    assert log.turn.end is None
    log.end("b", "done")

    assert failure_of(log) == (
        "step a has failed: out of stock. Not begun: c. When the cause is mended, `celeriac plan "
        "retry r1` does what is left, and keeps the 1 step that is completed"
    )


def test_what_does_not_need_the_failed_step_goes_on() -> None:
    log = Log(RUNNER, Plan([*LAYERS, PlanStep("d", tool="work", needs=["b"])]).to_json())

    log.end("a", error="out of stock")
    log.end("b", "done")
    assert list(log.open) == ["d"]
    log.end("d", "done")

    assert "Not begun: c." in failure_of(log)


# features: 004-29
@pytest.mark.parametrize("interval", ["per_step", "per_layer"])
def test_an_exclusive_step_is_asked_for_when_nothing_else_goes_on(interval: Any) -> None:
    runner = PlanRunner("plans", [work, lock])
    steps = [
        PlanStep("a", tool="work"),
        PlanStep("b", tool="lock"),
        PlanStep("c", tool="work"),
        PlanStep("d", tool="lock", needs=["a"]),
    ]
    log = Log(runner, Plan(steps, checkpoint_interval=interval).to_json())

    together = []
    while log.turn.end is None:
        together.append(sorted(log.open))
        log.end(together[-1][0], "done")

    assert together == [["a", "c"], ["c"], ["b"], ["d"]]
    assert end_of(log)[0] is EndKind.COMPLETED


def test_what_waited_for_an_exclusive_step_begins_though_that_is_refused() -> None:
    runner = PlanRunner("plans", [untyped, work, lock])
    number: dict[str, JsonValue] = {"number": result_of("first")}
    steps = [
        PlanStep("first", tool="untyped", arguments={"value": 1}),
        PlanStep("then", tool="lock", arguments=number, needs=["first"], on_failure="skip"),
        PlanStep("last", tool="lock", needs=["first"]),
    ]
    log = Log(runner, Plan(steps, checkpoint_interval="per_layer").to_json())

    log.end("first", "no number")
    assert list(log.open) == ["last"]
    log.end("last", "done")

    assert end_of(log) == (EndKind.COMPLETED, {"last": "done"})


def test_all_kinds_of_steps_are_asked_for() -> None:
    plan = Plan(
        [
            PlanStep("look", tool="work", arguments={"number": 3}),
            PlanStep("why", question="Why?", arguments={"of": result_of("look")}, needs=["look"]),
            PlanStep("write", agent="writer", arguments=result_of("why"), needs=["why"]),
        ],
        output={"text": result_of("write")},
    )
    log = Log(RUNNER, plan.to_json())
    log.end("look", "rain")
    log.end("why", "because")
    log.end("write", "It rains")

    assert end_of(log) == (EndKind.COMPLETED, {"text": "It rains"})
    assert [
        (asked.kind, asked.name, asked.arguments, asked.label)
        for asked in (log.entries[number].asked for number in range(1, 4))
    ] == [
        (EntryKind.ACTIVITY, "work", {"number": 3, "of": None}, "look"),
        (EntryKind.MODEL, "model", {"prompt": 'Why?\n\n{"of":"rain"}'}, "why"),
        (EntryKind.CHILD, "writer", "because", "write"),
    ]


def test_a_step_that_its_tool_refuses_has_failed_and_says_so_in_the_log() -> None:
    plan = Plan(
        [
            PlanStep("first", tool="untyped", arguments={"value": 1}),
            PlanStep(
                "then", tool="work", arguments={"number": result_of("first")}, needs=["first"]
            ),
        ]
    )
    log = Log(RUNNER, plan.to_json())

    log.end("first", "no number")

    assert "step then has failed: The arguments of work cannot be used" in failure_of(log)
    refused = log.entries[2].asked
    assert (refused.kind, refused.label) == (EntryKind.VALUE, "then")
    assert "cannot be used" in str(refused.value)


def test_results_are_as_they_are_in_the_log_and_not_as_the_code_would_read_them() -> None:
    plan = Plan(
        [
            PlanStep("a", tool="work"),
            PlanStep("b", tool="untyped", arguments={"value": result_of("a")}, needs=["a"]),
        ]
    )
    log = Log(RUNNER, plan.to_json())

    log.end("a", {"not": "a text, as its type says"})

    assert log.open["b"].arguments == {"value": {"not": "a text, as its type says"}}


@given(plans(), st.data())
def test_what_an_earlier_run_has_completed_is_not_asked_for(
    plan: Plan, data: st.DataObject
) -> None:
    ancestors = graph.ancestors(plan.needs)
    last = data.draw(st.sets(st.sampled_from(sorted(plan.needs))))
    done = {step for each in last for step in (each, *ancestors[each])}
    order = [step_id for step_id in graph.order(plan.needs) if step_id in done]
    kept = [Entry(Asked(0, EntryKind.VALUE, KEPT, value=[*order]))]
    kept += [
        Entry(Asked(number, EntryKind.VALUE, f"{KEPT} {step_id}", value=f"result of {step_id}"))
        for number, step_id in enumerate(order, 1)
    ]
    log = Log(RUNNER, plan.to_json(), kept)
    asked: set[str] = set()
    while log.turn.end is None:
        asked |= log.open.keys()
        step_id = data.draw(st.sampled_from(sorted(log.open)))
        log.end(step_id, f"result of {step_id}")

    assert asked == plan.needs.keys() - done
    assert end_of(log)[0] is EndKind.COMPLETED


def test_the_longest_plan_is_executed() -> None:
    steps = [PlanStep("s0", tool="work")]
    steps += [PlanStep(f"s{at}", tool="work", needs=[f"s{at - 1}"]) for at in range(1, 500)]
    log = Log(RUNNER, Plan(steps[:100]).to_json())
    for step in steps[:100]:
        log.end(step.id, "done")

    assert end_of(log) == (EndKind.COMPLETED, {"s99": "done"})


def test_a_plan_that_the_runner_cannot_do_is_no_input_of_it() -> None:
    plan = Plan([PlanStep("a", tool="play")])

    with pytest.raises(InvalidPlan, match="step a: there is no tool play; known are untyped, work"):
        RUNNER.validate_input(plan.to_json())
    with pytest.raises(InvalidInput, match=r"steps\[0\].tol: unknown"):
        RUNNER.validate_input({"steps": [{"id": "a", "tol": "work"}]})


def test_a_runner_without_a_model_takes_no_questions() -> None:
    plan = Plan([PlanStep("a", question="Why?")])

    RUNNER.validate_input(plan.to_json())
    with pytest.raises(InvalidPlan, match="there is no model to ask"):
        PlanRunner("plans", [work]).validate_input(plan.to_json())


def test_a_deploy_that_takes_a_tool_away_does_not_stop_a_plan_that_has_called_it() -> None:
    log = Log(RUNNER, Plan(LAYERS).to_json())
    log.end("a", "done")
    without = PlanRunner("plans", [untyped])

    coroutine = without.begin(None, Plan(LAYERS).to_json())  # type: ignore[arg-type]  # it is not run
    coroutine.close()
