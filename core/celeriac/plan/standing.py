"""How each step of a plan stands, by what the log of its run says: for whoever shows a plan."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celeriac.plan import graph
from celeriac.plan.log import kept_name
from celeriac.plan.plan import Plan, PlanStep
from celeriac.plan.progress import StepState
from celeriac.workflows.entry import EntryKind


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log that is labelled with a step."""

    step: str
    kind: EntryKind
    name: str
    has_ended: bool = False
    error: dict[str, Any] | None = None  # also if the step was refused
    made_by: str | None = None  # the run that does it


@dataclass(frozen=True, slots=True)
class Node:
    """A step as it is drawn."""

    id: str
    layer: int  # from 0
    needs: Sequence[str]
    does: str
    state: StepState
    is_kept: bool = False  # from an earlier run
    attempts: int = 0
    error: dict[str, Any] | None = None
    run_id: str | None = None  # of the latest attempt


def nodes(plan: Plan, lines: Iterable[Line], *, is_over: bool) -> list[Node]:
    """The steps in the order of their layers, with what is known of each; `is_over` says whether
    the run has ended."""
    told: dict[str, list[Line]] = {}
    for line in lines:
        told.setdefault(line.step, []).append(line)
    states = _states(plan, told, is_over=is_over)
    steps = {step.id: step for step in plan.steps}
    found: list[Node] = []
    for layer, ids in enumerate(graph.layers(plan.needs)):
        for step_id in ids:
            of_step = told.get(step_id, [])
            calls = [line for line in of_step if not line.kind.is_answered_at_once]
            found.append(
                Node(
                    step_id,
                    layer,
                    [*steps[step_id].needs],
                    steps[step_id].does,
                    states[step_id],
                    is_kept=any(line.name == kept_name(step_id) for line in of_step),
                    attempts=len(calls),
                    error=of_step[-1].error if states[step_id] is StepState.FAILED else None,
                    run_id=calls[-1].made_by if calls else None,
                )
            )
    return found


def _states(
    plan: Plan, told: Mapping[str, Sequence[Line]], *, is_over: bool
) -> dict[str, StepState]:
    steps = {step.id: step for step in plan.steps}
    states = {step.id: _state(step, told.get(step.id, [])) for step in plan.steps}
    failed = [step_id for step_id, state in states.items() if state is StepState.FAILED]
    is_stopped = is_over or any(steps[step_id].on_failure == "stop" for step_id in failed)
    gone = {StepState.FAILED, StepState.SKIPPED}
    for step_id in graph.order(plan.needs):
        match states[step_id]:
            case StepState.RUNNING if is_over:
                states[step_id] = StepState.STOPPED
            case StepState.WAITING if is_stopped or any(
                states[need] in gone for need in plan.needs[step_id]
            ):
                states[step_id] = StepState.SKIPPED
    return states


def _state(step: PlanStep, lines: Sequence[Line]) -> StepState:
    if not lines:
        return StepState.WAITING
    last = lines[-1]
    if last.name == kept_name(step.id):
        return StepState.COMPLETED
    if last.error is None:
        return StepState.COMPLETED if last.has_ended else StepState.RUNNING
    is_tried_again = len(lines) <= step.retries and last.error.get("is_certain") is True
    return StepState.RUNNING if is_tried_again else StepState.FAILED
