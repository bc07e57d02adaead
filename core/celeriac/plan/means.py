"""What the steps of a plan may use, as far as it is known where the plan is checked.

A worker and whoever imports its module have the tools themselves; the HTTP API and a client that
knows a runner by name have what a worker registered. Both are checked by the same schemas.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from celeriac.codec import JsonValue
from celeriac.errors import InvalidPlan
from celeriac.plan.json_types import types_at
from celeriac.plan.plan import Plan, PlanStep
from celeriac.plan.references import Reference, opened, references
from celeriac.schemas import listed, located, problems_as_far_as_known

Schema: TypeAlias = Mapping[str, JsonValue]

TEXT: Schema = {"type": "string"}


@dataclass(frozen=True, slots=True)
class Mean:
    """One tool or agent: what it takes, and what it gives, `{}` where that is not known."""

    takes: Schema = field(default_factory=dict)
    gives: Schema = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Means:
    tools: Mapping[str, Mean]
    agents: Mapping[str, Mean]
    has_model: bool

    def to_json(self) -> dict[str, JsonValue]:
        return {
            "tools": {name: _to_json(mean) for name, mean in self.tools.items()},
            "agents": {name: _to_json(mean) for name, mean in self.agents.items()},
            "has_model": self.has_model,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Means":
        return cls(
            {name: Mean(**mean) for name, mean in stored["tools"].items()},
            {name: Mean(**mean) for name, mean in stored["agents"].items()},
            bool(stored["has_model"]),
        )

    def check(self, plan: Plan, made: Collection[str] = ()) -> Plan:
        """The plan, if its steps can be made, but for those that were `made` before. Raises
        `InvalidPlan`, which lists what cannot."""
        steps = {step.id: step for step in plan.steps}
        left = [step for step in plan.steps if step.id not in made]
        if problems := [said for step in left for said in self._problems(step, steps)]:
            raise InvalidPlan(f"the plan cannot be used: {listed(problems)}")
        return plan

    def _problems(self, step: PlanStep, steps: Mapping[str, PlanStep]) -> Iterator[str]:
        mean = self._mean(step)
        if mean is None:
            yield f"step {step.id}: {self._missing(step)}"
            return
        arguments = {} if step.tool is not None and step.arguments is None else step.arguments
        known = opened(arguments)
        for problem in problems_as_far_as_known(known, mean.takes, Reference):
            yield f"step {step.id}: {problem}"
        for path, reference in references(arguments):
            yield from self._misfit(step, mean.takes, path, reference, steps)

    def _misfit(
        self,
        step: PlanStep,
        takes: Schema,
        path: tuple[str | int, ...],
        reference: Reference,
        steps: Mapping[str, PlanStep],
    ) -> Iterator[str]:
        source = self._mean(steps[reference.step])
        if source is None:
            return  # told of that step
        given = types_at(source.gives, reference.at)
        wanted = types_at(takes, path)
        place = f"step {step.id}: " + located(path, "")
        if given is not None and not given:
            yield f"{place}the result of {reference.step} has nothing at {reference}"
        elif given is not None and wanted is not None and not _fits(given, wanted):
            yield (
                f"{place}{_any_of(given)} of the result of {reference.step} cannot be "
                f"{_any_of(wanted)}"
            )

    def _mean(self, step: PlanStep) -> Mean | None:
        if step.tool is not None:
            return self.tools.get(step.tool)
        if step.agent is not None:
            return self.agents.get(step.agent)
        return Mean({}, TEXT) if self.has_model else None

    def _missing(self, step: PlanStep) -> str:
        if step.question is not None:
            return "there is no model to ask; the runner of the plan must have one"
        kind, name = ("tool", step.tool) if step.tool is not None else ("agent", step.agent)
        known = sorted(self.tools if step.tool is not None else self.agents)
        listing = f"known are {', '.join(known)}" if known else "there are none"
        return f"there is no {kind} {name}; {listing}"


def _to_json(mean: Mean) -> JsonValue:
    return {"takes": dict(mean.takes), "gives": dict(mean.gives)}


def _fits(given: set[str], wanted: set[str]) -> bool:
    numbers = {"integer", "number"}
    return bool(given & wanted or (given & numbers and wanted & numbers))


def _any_of(types: Iterable[str]) -> str:
    return " or ".join(sorted(types))
