"""An agent: a model, its instructions and its tools, with the limits of one run."""

import hashlib
import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidAgent, InvalidInput
from celeriac.ids import DEFAULT_QUEUE
from celeriac.limits import Limits
from celeriac.shapes import Shape, strict_json
from celeriac.tools import Tool

if TYPE_CHECKING:
    from pydantic_ai.models import Model

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
STEP_MARGIN_SECONDS = 30.0  # on top of the longest call of a step: loading, committing, waiting


class Agent:
    """What runs are made of. Immutable; made once, at the top level of a module.

    `model` is any pydantic-ai model, the name of one (`"openai:gpt-5"`, resolved when a worker
    starts) or a `ScriptedModel`. `input` is a type that a run's input must fit, checked before
    anything is written. `step_deadline_seconds` bounds a step that hangs in a live process.
    Raises `InvalidAgent`.
    """

    def __init__(
        self,
        name: str,
        model: "Model | str",
        instructions: str = "",
        tools: Sequence[Tool[..., Any]] = (),
        *,
        input: Any = None,  # noqa: A002 - the word of the interface
        limits: Limits | None = None,
        queue: str = DEFAULT_QUEUE,
        think_timeout_seconds: float = 120.0,
        step_deadline_seconds: float | None = None,
        description: str = "",
    ) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidAgent(
                f"{name!r} cannot be an agent's name: 1 to 64 lower-case letters, digits, _ and -"
            )
        for each in tools:
            if not isinstance(each, Tool):
                raise InvalidAgent(f"agent {name}: {each!r} is no tool; decorate it with @tool")
        names = [each.name for each in tools]
        if twice := sorted({each for each in names if names.count(each) > 1}):
            raise InvalidAgent(f"agent {name} has two tools of the name {', '.join(twice)}")
        if not think_timeout_seconds > 0:
            raise InvalidAgent(
                f"agent {name}: think_timeout_seconds is {think_timeout_seconds}; it must be above 0"
            )
        self.name = name
        self.model = model
        self.instructions = instructions
        self.tools = tuple(tools)
        self.input = None if input is None else Shape(input)
        self.limits = limits or Limits()
        self.queue = queue
        self.think_timeout_seconds = think_timeout_seconds
        self.description = description
        longest = max([think_timeout_seconds, *(each.timeout_seconds for each in tools)])
        self.step_deadline_seconds = step_deadline_seconds or longest + STEP_MARGIN_SECONDS
        if self.step_deadline_seconds <= longest:
            raise InvalidAgent(
                f"agent {name}: step_deadline_seconds is {self.step_deadline_seconds:g}, but one "
                f"call may take {longest:g} s"
            )

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    def validate_input(self, value: object) -> JsonValue:
        """The run's input in canonical form. Raises `InvalidInput` that lists each problem."""
        try:
            return strict_json(value) if self.input is None else self.input.read(value)[0]
        except InvalidInput as error:
            raise InvalidInput(f"the input of agent {self.name} cannot be used: {error}") from error

    @staticmethod
    def prompt(value: JsonValue) -> str:
        """The run's first message: a text as it is, anything else as JSON."""
        return value if isinstance(value, str) else dumps(value)

    def definition(self) -> dict[str, JsonValue]:
        """The agent's row in the registry: all that matters and can be told without its code."""
        return {
            "name": self.name,
            "description": self.description,
            "model": self.model if isinstance(self.model, str) else self.model.model_name,
            "instructions": self.instructions,
            "tools": [each.registration() for each in self.tools],
            "input_schema": None if self.input is None else self.input.schema,
            "limits": self.limits.to_json(),
            "queue": self.queue,
            "think_timeout_seconds": self.think_timeout_seconds,
            "step_deadline_seconds": self.step_deadline_seconds,
        }

    @cached_property
    def agent_hash(self) -> str:
        """sha256 of the definition, 64 hex digits."""
        return _hash(self.definition())

    @cached_property
    def tools_hash(self) -> str:
        return _hash([each.registration() for each in self.tools])

    @cached_property
    def prompt_hash(self) -> str:
        return _hash(self.instructions)


def _hash(value: JsonValue) -> str:
    return hashlib.sha256(dumps(value).encode()).hexdigest()
