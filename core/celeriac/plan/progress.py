"""How far a plan has come: a pure function of the plan and of what its steps came to, in order.

The workflow that executes a plan asks it what to start next, and whoever shows a plan asks it how
each step stands. It knows nothing of workers, time and attempts.
"""

from collections.abc import Collection
from enum import StrEnum

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput
from celeriac.plan import graph
from celeriac.plan.plan import Plan, PlanStep
from celeriac.plan.references import filled


class StepState(StrEnum):
    WAITING = "waiting"  # for steps that it needs, in the same layer, or that overlap with none
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"  # it went on when the run ended; its own run tells what came of it
    SKIPPED = "skipped"  # it will not start: something that it needs has failed, or all has stopped


class Progress:
    """`exclusive` are the tools whose steps run alone."""

    def __init__(self, plan: Plan, exclusive: Collection[str] = ()) -> None:
        self.plan = plan
        self.states = {step.id: StepState.WAITING for step in plan.steps}
        self.results: dict[str, JsonValue] = {}
        self.errors: dict[str, dict[str, JsonValue]] = {}
        self._steps = {step.id: step for step in plan.steps}
        self._places = {step.id: place for place, step in enumerate(plan.steps)}
        self._dependents = graph.dependents_of(plan.needs)
        self._missing = {step.id: len(step.needs) for step in plan.steps}
        self._ready = [step.id for step in plan.steps if not step.needs]
        self._running = 0
        self._exclusive = {step.id for step in plan.steps if step.tool in exclusive}

    def due(self) -> list[PlanStep]:
        """The steps to start now, which count as running from here on; in the order of the plan.

        A step whose arguments cannot be made of the results has failed instead.
        """
        if self._running and (self.plan.checkpoint_interval == "per_layer" or self._is_alone):
            return []
        ready, self._ready = sorted(self._ready, key=self._places.__getitem__), []
        due: list[PlanStep] = []
        for step_id in ready:
            if self.states[step_id] is not StepState.WAITING:
                continue  # one before it has failed, and stopped all
            if self._is_alone or (step_id in self._exclusive and self._running):
                self._ready.append(step_id)
                continue
            try:
                self.arguments(step_id)
            except InvalidInput as error:
                self._fail(step_id, {"kind": "invalid_arguments", "message": str(error)})
            else:
                self.states[step_id] = StepState.RUNNING
                self._running += 1
                due.append(self._steps[step_id])
        return due

    def arguments(self, step_id: str) -> JsonValue:
        """What the step is given. Raises `InvalidInput` if a result lacks what is referred to."""
        return filled(self._steps[step_id].arguments, self.results)

    def keep(self, step_id: str, result: JsonValue) -> None:
        """The step was completed by an earlier run."""
        assert self.states[step_id] is StepState.WAITING, f"{step_id} has been started"
        self._ready.remove(step_id)
        self._complete(step_id, result)

    def completed(self, step_id: str, result: JsonValue) -> None:
        self._end(step_id)
        self._complete(step_id, result)

    def failed(self, step_id: str, error: dict[str, JsonValue]) -> None:
        self._end(step_id)
        self._fail(step_id, error)

    @property
    def is_over(self) -> bool:
        """Nothing runs, and nothing is to start."""
        return not self._running and not self._ready

    @property
    def is_failed(self) -> bool:
        return any(self._steps[step_id].on_failure != "skip" for step_id in self.errors)

    def of_state(self, state: StepState) -> list[str]:
        """The steps that stand so, in the order of the plan."""
        return [step_id for step_id, found in self.states.items() if found is state]

    def output(self) -> JsonValue:
        """What the plan results in, once it is over and has not failed.

        Raises `InvalidInput` if the output refers to what is not there.
        """
        if self.plan.output is not None:
            return filled(self.plan.output, self.results)
        return {
            step_id: result
            for step_id, result in self.results.items()
            if not self._dependents[step_id]
        }

    @property
    def _is_alone(self) -> bool:
        """A step runs that overlaps with no other."""
        return any(self.states[step_id] is StepState.RUNNING for step_id in self._exclusive)

    def _end(self, step_id: str) -> None:
        assert self.states[step_id] is StepState.RUNNING, f"{step_id} does not run"
        self._running -= 1

    def _complete(self, step_id: str, result: JsonValue) -> None:
        self.states[step_id] = StepState.COMPLETED
        self.results[step_id] = result
        for dependent in self._dependents[step_id]:
            self._missing[dependent] -= 1
            if not self._missing[dependent] and self.states[dependent] is StepState.WAITING:
                self._ready.append(dependent)

    def _fail(self, step_id: str, error: dict[str, JsonValue]) -> None:
        self.states[step_id] = StepState.FAILED
        self.errors[step_id] = error
        if self._steps[step_id].on_failure == "stop":
            self._ready.clear()
            given_up = list(self.states)
        else:
            given_up = list(self._dependents[step_id])
        for dependent in given_up:  # grows meanwhile
            if self.states[dependent] is StepState.WAITING:
                self.states[dependent] = StepState.SKIPPED
                given_up += self._dependents[dependent]


def kept(plan: Plan, earlier: Plan, results: Collection[str]) -> list[str]:
    """The steps of `plan` whose results still stand: they were completed in `earlier`, and are the
    same there, with all that they depend on. Each comes after those that it needs."""
    was, now = graph.identities(earlier.steps), graph.identities(plan.steps)
    found: dict[str, None] = {}
    for step_id in graph.order(plan.needs):
        is_same = step_id in results and was.get(step_id) == now[step_id]
        if is_same and all(need in found for need in plan.needs[step_id]):
            found[step_id] = None
    return [*found]
