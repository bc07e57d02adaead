"""An agent: a model, its instructions and its tools, with the limits of one run."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from celeriac import seconds
from celeriac.approval import Approval
from celeriac.codec import JsonValue, dumps
from celeriac.context_policy import ContextPolicy
from celeriac.contract import Contract
from celeriac.errors import InvalidAgent, InvalidInput
from celeriac.ids import DEFAULT_QUEUE
from celeriac.limits import Limits
from celeriac.memory.policy import MemoryPolicy
from celeriac.memory.tools import memory_tools
from celeriac.price import Price
from celeriac.schemas import strict_json
from celeriac.shapes import Shape
from celeriac.states import RunKind
from celeriac.tools import Tool

if TYPE_CHECKING:
    from pydantic_ai.models import Model

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
NO_MODEL = "none"  # the name of one that is never asked: of a workflow without ctx.model
STEP_MARGIN_SECONDS = 30.0  # on top of the longest call of a step: loading, committing, waiting


class Agent:
    """What runs are made of. Make it once, at the top level of a module; it never changes.

    `model` is any pydantic-ai model, the name of one (`"openai:gpt-5"`, resolved when a worker
    starts) or a `ScriptedModel`. `input` is a type that a run's input must fit, which is checked
    before anything is written; without one, any JSON will do. `limits` bound each run. A worker
    must serve the Celery queue `queue` to execute the agent.

    `think_timeout_seconds` bounds one model call, and `step_deadline_seconds` a whole step, even
    one that hangs in a live process; the default is the longest call plus `STEP_MARGIN_SECONDS`.
    With `stream`, readers see the model's text while it is being written (`docs/streaming.md`).

    `contract` says what must hold before the model may say that it is done (`docs/contracts.md`).
    With `memory` the agent remembers its users across threads, as far as that policy allows, and
    has the tools `remember`, `recall`, `forget` and `forget_everything` (`docs/memory.md`).
    `context` limits what is sent with a model call (`docs/context.md`); the default is
    `ContextPolicy()`, or everything for a `ScriptedModel`. `max_output_tokens` is the most that one
    answer may have; it is sent to the model and reserved from budgets. `price` is for a model that
    the price table does not know (`docs/budgets.md`).

    Raises `InvalidAgent` if the parts contradict each other.
    """

    run_kind: ClassVar = RunKind.AGENT
    runs_plans: ClassVar = False  # whether a run's input is a plan (`celeriac.plan`)

    def __init__(
        self,
        name: str,
        model: "Model | str",
        instructions: str = "",
        tools: Sequence[Tool[..., Any]] = (),
        *,
        input: Any = None,  # noqa: A002  the word of the interface
        limits: Limits | None = None,
        queue: str = DEFAULT_QUEUE,
        think_timeout_seconds: float = 120.0,
        step_deadline_seconds: float | None = None,
        description: str = "",
        stream: bool = False,
        contract: Contract | None = None,
        memory: MemoryPolicy | None = None,
        context: ContextPolicy | None = None,
        max_output_tokens: int | None = None,
        price: Price | None = None,
    ) -> None:
        _check_names(name, model, queue)
        if memory is not None:
            tools = (*tools, *memory_tools(memory))
        _check_tools(name, tools)
        if contract is not None:
            _check_contract(name, contract, tools)
        longest = max([think_timeout_seconds, *(each.longest_seconds for each in tools)])
        if step_deadline_seconds is None:
            step_deadline_seconds = longest + STEP_MARGIN_SECONDS
        _check_times(name, think_timeout_seconds, longest, step_deadline_seconds)
        _check_output(name, max_output_tokens)
        self.name: Final = name
        self.model: Final = model
        self.instructions: Final = instructions
        self.tools: Final = tuple(tools)
        self.input: Final = None if input is None else _shape_of_input(name, input)
        self.input_type: Final = input
        self.limits: Final = limits or Limits()
        self.queue: Final = queue
        self.think_timeout_seconds: Final = think_timeout_seconds
        self.step_deadline_seconds: Final = step_deadline_seconds
        self.description: Final = description
        self.stream: Final = stream
        self.contract: Final = contract
        self.memory: Final = memory
        self.context: Final = context
        self.max_output_tokens: Final = max_output_tokens
        self.price: Final = price
        self._is_made: Final = True

    def __setattr__(self, attribute: str, value: object) -> None:
        if hasattr(self, "_is_made"):  # its hashes and its row in the registry would not follow
            raise AttributeError(f"agent {self.name} cannot be changed; make another one")
        super().__setattr__(attribute, value)

    def __repr__(self) -> str:
        return f"Agent({self.name!r})"

    def validate_input(self, value: object) -> JsonValue:
        """The run's input in canonical form (`Shape.read`).

        Raises `InvalidInput`, which lists each problem with its place and value:
        `quantity: 0 is less than 1`.
        """
        try:
            return strict_json(value) if self.input is None else self.input.read(value)[0]
        except InvalidAgent:  # the type's fault, not the caller's
            raise
        except InvalidInput as error:
            raise InvalidInput(f"the input of agent {self.name} cannot be used: {error}") from error

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        approval: Approval | None = None,
    ) -> Tool[..., Any]:
        """A tool for other agents: each call is answered by a run of this one (docs/children.md).

        The run sees its input and nothing of the conversation it was called from. Its result is
        the call's; if it fails or is cancelled, the model that called is told so. Raises
        `InvalidAgent` as `tool` does.
        """
        from celeriac.delegation import agent_tool

        return agent_tool(self, name, description, approval=approval)

    def as_handoff(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        approval: Approval | None = None,
    ) -> Tool[..., Any]:
        """A tool for other agents that hands the conversation over to this one: its run goes on
        with all that was said so far, and its answer ends the run that called (docs/children.md).

        If it fails or is cancelled, the model that called is told so and goes on itself.
        """
        from celeriac.delegation import agent_tool

        return agent_tool(self, name, description, is_handoff=True, approval=approval)

    def read_result(self, result: JsonValue) -> Any:
        """The result of a run, as it was stored, for the workflow that started it."""
        return result

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
            "input_schema": None if self.input is None else self.input.exact_schema,
            "limits": self.limits.to_json(),
            "queue": self.queue,
            "think_timeout_seconds": self.think_timeout_seconds,
            "step_deadline_seconds": self.step_deadline_seconds,
            # Only if they are there: older hashes stay what they are.
            **({"stream": True} if self.stream else {}),
            **({} if self.contract is None else {"contract": self.contract.to_json()}),
            **({"memory": self.memory.to_json()} if self.memory else {}),
            **({} if self.context is None else {"context": asdict(self.context)}),
            **(
                {}
                if self.max_output_tokens is None
                else {"max_output_tokens": self.max_output_tokens}
            ),
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


def _check_names(name: str, model: object, queue: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidAgent(
            f"{name!r} cannot be an agent's name: 1 to 64 lower-case letters, digits, _ and -"
        )
    if not _QUEUE.fullmatch(queue):
        raise InvalidAgent(
            f"agent {name}: {queue!r} cannot be a queue's name: 1 to 128 letters, digits and the "
            "signs . _ -"
        )
    if not (model if isinstance(model, str) else hasattr(model, "model_name")):
        raise InvalidAgent(
            f"agent {name}: {model!r} is no model; give a pydantic-ai model, the name of one "
            "such as 'openai:gpt-5', or a ScriptedModel"
        )


def _check_tools(name: str, tools: Sequence[object]) -> None:
    names: set[str] = set()
    for each in tools:
        if not isinstance(each, Tool):
            raise InvalidAgent(
                f"agent {name}: {each!r} is no tool; put @tool above the function, and tell there "
                "what it does to the world"
            )
        if each.name in names:
            raise InvalidAgent(
                f"agent {name} has two tools of the name {each.name}, by which the model tells "
                "them apart; give one another with @tool(name=...)"
            )
        names.add(each.name)


def _check_contract(name: str, contract: Contract, tools: Sequence[Tool[..., Any]]) -> None:
    """A contract that no call can meet would only be found out after the work."""
    known = {each.name for each in tools}
    problem = None
    if unknown := [tool for tool in contract.tools if tool not in known]:
        problem = f"require_observed_effect names {unknown[0]}, which is none of its tools"
    elif contract.require_focused_verification and not any(each.flags.verifies for each in tools):
        problem = (
            "require_focused_verification needs a tool that runs the tests, such as that of "
            "workspace_tools(tests=[...]), or one with verifies=True"
        )
    elif (contract.require_workspace_mutation or contract.paths_changed) and not any(
        each.flags.mutates_workspace for each in tools
    ):
        problem = "it requires changed files, and none of its tools has mutates_workspace=True"
    if problem is not None:
        raise InvalidAgent(f"agent {name}: its contract cannot be met: {problem}")


def _check_times(name: str, think_timeout: float, longest: float, step_deadline: float) -> None:
    if wrong := seconds.problem(
        "think_timeout_seconds", think_timeout, most=seconds.MAX_CALL_SECONDS
    ) or seconds.problem("step_deadline_seconds", step_deadline):
        raise InvalidAgent(f"agent {name}: {wrong}")
    if not longest < step_deadline:
        raise InvalidAgent(
            f"agent {name}: step_deadline_seconds={step_deadline!r} must be longer than the "
            f"longest call of a step, which may take {longest:g} s"
        )


def _check_output(name: str, most: object) -> None:
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise InvalidAgent(
            f"agent {name}: max_output_tokens is {most!r}; it must be a whole number above 0"
        )


def _shape_of_input(name: str, type_: Any) -> Shape:
    try:
        return Shape(type_)
    except InvalidAgent as error:
        raise InvalidAgent(f"the input of agent {name}: {error}") from error


def hashes_of(definition: Mapping[str, JsonValue]) -> tuple[str, str]:
    """The hash of the instructions and that of the tools of a registered definition, as an agent's
    `prompt_hash` and `tools_hash`."""
    return _hash(definition.get("instructions")), _hash(definition.get("tools"))


def _hash(value: JsonValue) -> str:
    return hashlib.sha256(dumps(value).encode()).hexdigest()
