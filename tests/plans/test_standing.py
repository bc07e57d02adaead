"""How the steps of a plan are shown, by what its log says."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celeriac.plan import Plan, PlanStep
from celeriac.plan.log import kept_name, refused_name
from celeriac.plan.progress import StepState
from celeriac.plan.standing import Line, nodes
from celeriac.workflows.entry import EntryKind
from tests.plans.strategies import plans, played

FAILURE = {"kind": "failed", "message": "no"}
CERTAIN = {**FAILURE, "is_certain": True}
CHAIN = Plan(
    [
        PlanStep("a", tool="work", retries=1),
        PlanStep("b", tool="work", needs=["a"]),
        PlanStep("c", tool="work", needs=["b"]),
    ]
)


def call_of(step: str, *, ended: bool = True, error: dict[str, Any] | None = None) -> Line:
    return Line(step, EntryKind.ACTIVITY, "work", ended, error, f"run of {step}")


def states(plan: Plan, *lines: Line, is_over: bool = False) -> list[str]:
    return [node.state.value for node in nodes(plan, lines, is_over=is_over)]


@given(plans(on_failure=st.sampled_from(["fail", "stop", "skip"])), st.data())
def test_they_stand_as_the_runner_sees_them(plan: Plan, data: st.DataObject) -> None:
    failing = data.draw(st.sets(st.sampled_from(sorted(plan.needs))))
    lines: list[Line] = []

    def choose(running: list[str]) -> str:
        chosen = data.draw(st.sampled_from(running))
        lines.append(call_of(chosen, error=FAILURE if chosen in failing else None))
        return chosen

    progress, _ = played(plan, choose, failing.__contains__)

    for is_over in (False, True):
        shown = {node.id: node.state for node in nodes(plan, lines, is_over=is_over)}
        assert shown == progress.states


@pytest.mark.parametrize(
    ("lines", "is_over", "shown"),
    [
        ([], False, ["waiting", "waiting", "waiting"]),
        ([], True, ["skipped", "skipped", "skipped"]),
        ([call_of("a", ended=False)], False, ["running", "waiting", "waiting"]),
        ([call_of("a", ended=False)], True, ["stopped", "skipped", "skipped"]),
        ([call_of("a", error=FAILURE)], False, ["failed", "skipped", "skipped"]),
        ([call_of("a", error=CERTAIN)], False, ["running", "waiting", "waiting"]),
        ([call_of("a", error=CERTAIN)] * 2, False, ["failed", "skipped", "skipped"]),
        ([call_of("a", error=CERTAIN), call_of("a")], False, ["completed", "waiting", "waiting"]),
        (
            [Line("a", EntryKind.VALUE, kept_name("a")), call_of("b", ended=False)],
            False,
            ["completed", "running", "waiting"],
        ),
        (
            [call_of("a"), Line("b", EntryKind.VALUE, refused_name("b"), error=FAILURE)],
            False,
            ["completed", "failed", "skipped"],
        ),
    ],
    ids=str,
)
def test_each_kind_of_line(lines: list[Line], is_over: bool, shown: list[str]) -> None:
    assert states(CHAIN, *lines, is_over=is_over) == shown


def test_what_is_told_of_a_step() -> None:
    lines = [call_of("a", error=CERTAIN), call_of("a", error=FAILURE)]

    a, b, _ = nodes(CHAIN, lines, is_over=True)

    assert (a.attempts, a.error, a.run_id, a.is_kept) == (2, FAILURE, "run of a", False)
    assert (b.layer, b.needs, b.does, b.run_id) == (1, ["a"], "tool work", None)
    assert nodes(replace(CHAIN, steps=CHAIN.steps[:1]), [], is_over=False)[0].state is (
        StepState.WAITING
    )
