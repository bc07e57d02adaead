"""A plan: steps, what they need, and what happens when one fails."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Annotated, Literal, cast

import pydantic
from pydantic import Field

from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidPlan
from celeriac.plan import graph
from celeriac.schemas import listed, strict_json
from celeriac.shapes import Shape

MAX_STEPS = 500
MAX_NEEDS = 100  # of one step
MAX_RETRIES = 10
MAX_PLAN_BYTES = 256 * 1024

CheckpointInterval = Literal["per_step", "per_layer"]
OnFailure = Literal["fail", "stop", "skip"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class PlanStep:
    """One call of a tool, one run of an agent, or one question to the model."""

    id: Annotated[str, Field(description="1 to 64 letters, digits, _ and -; no two have the same")]
    tool: Annotated[str | None, Field(description="The tool to call.")] = None
    agent: Annotated[str | None, Field(description="Or the agent to run.")] = None
    question: Annotated[str | None, Field(description="Or what to ask a model.")] = None
    arguments: Annotated[
        pydantic.JsonValue,
        Field(
            description="The tool's arguments by name; the agent's input; or what the question is "
            'about. {"$result": "STEP"} stands for the result of a step that this one needs, '
            '{"$result": "STEP", "at": ["key", 0]} for a part of it.'
        ),
    ] = None
    needs: Annotated[
        Sequence[str], Field(description="The ids of the steps that must have completed before.")
    ] = ()
    retries: Annotated[
        int,
        Field(description="How often a tool's call is made again that failed without an effect."),
    ] = 0
    on_failure: Annotated[
        OnFailure,
        Field(
            description="fail: what needs it does not start, all else goes on, and the plan fails "
            "in the end. stop: nothing more starts. skip: as fail, but the plan may complete."
        ),
    ] = "fail"

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", tuple(self.needs))
        object.__setattr__(self, "arguments", strict_json(self.arguments))

    @property
    def does(self) -> str:
        """What kind of step it is, and with what, for people: `tool search`."""
        if self.tool is not None:
            return f"tool {self.tool}"
        return f"agent {self.agent}" if self.agent is not None else "question"

    def problems(self) -> Iterator[str]:
        """What is wrong with the step by itself, a sentence for each problem."""
        if not _ID.fullmatch(self.id):
            yield f"{self.id!r} cannot be a step's id: 1 to 64 letters, digits, _ and -"
        kinds = [kind for kind in (self.tool, self.agent, self.question) if kind is not None]
        if len(kinds) != 1:
            yield f"step {self.id} must have exactly one of tool, agent and question"
        elif not kinds[0].strip():
            yield f"step {self.id}: its tool, agent or question is empty"
        if self.tool is not None and not isinstance(self.arguments, dict | None):
            yield f"step {self.id}: the arguments of a tool are an object, with a value for each"
        if len(self.needs) > MAX_NEEDS:
            yield f"step {self.id} needs {len(self.needs)} steps; at most {MAX_NEEDS} are allowed"
        if not 0 <= self.retries <= MAX_RETRIES:
            yield f"step {self.id}: retries={self.retries} is none of 0 to {MAX_RETRIES}"
        elif self.retries and self.tool is None:
            yield (
                f"step {self.id}: only a tool's call can be known to have had no effect, so "
                "retries of anything else must be 0"
            )


@dataclass(frozen=True)
class Plan:
    """Steps that need one another, as a whole. It never changes; an edit is another version.

    With `checkpoint_interval="per_step"` a step starts as soon as all that it needs has completed.
    With `"per_layer"` the run wakes only when all steps that are going on have ended, and starts
    the next ones together: fewer checkpoints, but the slowest step of a layer holds up the rest.
    Each step's end is stored at once in both.

    `output` is what the run results in, with references to the results of steps. Without one, it is
    an object with the results of the steps that no other step needs.

    Raises `InvalidPlan`, which lists all that contradicts itself.
    """

    steps: Annotated[Sequence[PlanStep], Field(description="In any order.")]
    goal: Annotated[str, Field(description="What it is for, in a sentence.")] = ""
    checkpoint_interval: CheckpointInterval = "per_step"
    output: Annotated[
        pydantic.JsonValue,
        Field(
            description="What the plan results in, with references; null: what the last steps do."
        ),
    ] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "output", strict_json(self.output))
        if problems := list(self._problems()):
            raise InvalidPlan(f"the plan cannot be used: {listed(problems)}")

    @classmethod
    def from_json(cls, value: object) -> "Plan":
        """The plan that JSON stands for. Raises `InvalidInput`, with each problem and its place."""
        return cast(Plan, shape().read(value)[1])

    def to_json(self) -> dict[str, JsonValue]:
        """The plan in its canonical form, with the defaults filled in."""
        return cast("dict[str, JsonValue]", strict_json(asdict(self)))

    @cached_property
    def plan_hash(self) -> str:
        """SHA-256 of the canonical form, in hex. The order of the steps is part of it."""
        return hashlib.sha256(dumps(self.to_json()).encode()).hexdigest()

    @property
    def needs(self) -> dict[str, Sequence[str]]:
        """By each step's id, the ids of the steps that it needs."""
        return {step.id: step.needs for step in self.steps}

    def _problems(self) -> Iterator[str]:
        if not 1 <= len(self.steps) <= MAX_STEPS:
            yield f"it has {len(self.steps)} steps; 1 to {MAX_STEPS} are allowed"
            return
        for step in self.steps:
            yield from step.problems()
        yield from graph.problems(self.steps, self.output)
        if (size := len(dumps(self.to_json()).encode())) > MAX_PLAN_BYTES:
            yield (
                f"it has {size} bytes; at most {MAX_PLAN_BYTES} are allowed. Store what is large "
                "elsewhere and give the steps its address"
            )


@cache
def shape() -> Shape:
    """What a plan must look like as JSON."""
    return Shape(Plan)
