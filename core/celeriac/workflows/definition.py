"""Workflows: code whose every question is kept, so that it goes on where it was after a crash.

@workflow(tools=[reserve, ship])
async def ship_order(ctx: WorkflowContext, order: Order) -> Receipt:
    reserved = await ctx.activity(reserve, sku=order.sku)
    ...
"""

import hashlib
import inspect
import textwrap
from collections.abc import Callable, Coroutine, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    NoReturn,
    TypeVar,
    get_type_hints,
    overload,
)

from celeriac.agent import NO_MODEL, Agent
from celeriac.approval import Approval
from celeriac.codec import JsonValue
from celeriac.errors import InvalidAgent, InvalidInput
from celeriac.ids import DEFAULT_QUEUE
from celeriac.limits import Limits
from celeriac.price import Price
from celeriac.states import RunKind
from celeriac.tools import Tool
from celeriac.workflows.context import WorkflowContext
from celeriac.workflows.reading import Reader

if TYPE_CHECKING:
    from pydantic_ai.models import Model

R = TypeVar("R")
Code = Callable[..., Coroutine[Any, Any, R]]
LIMITS = Limits(steps=1_000_000, tool_calls=1_000_000, children=10_000)
"""Of a run, its activities and children included: an agent's would be used up by 100 calls, and
code that goes on for ever is bounded by its log (`flow.MAX_ENTRIES`)."""


class Workflow(Agent, Generic[R]):
    """What runs of a workflow are made of; made by `@workflow`. Started and found as an agent is.

    Calling it calls the plain function.
    """

    run_kind: ClassVar = RunKind.WORKFLOW

    def __init__(
        self,
        function: Code[R],
        name: str,
        tools: Sequence[Tool[..., Any]] = (),
        agents: Sequence[Agent] = (),
        model: "Model | str" = NO_MODEL,
        instructions: str = "",
        *,
        limits: Limits | None = None,
        queue: str = DEFAULT_QUEUE,
        think_timeout_seconds: float = 120.0,
        step_deadline_seconds: float | None = None,
        max_output_tokens: int | None = None,
        price: Price | None = None,
    ) -> None:
        takes_input, input_type, result_type = _read_signature(name, function)
        _check_tools(name, tools)
        _check_agents(name, agents)
        self.function: Final = function
        self.agents: Final = tuple(agents)
        self._result: Final = Reader(result_type, f"workflow {name}")
        self._takes_input: Final = takes_input
        self.code_hash: Final = _code_hash(function)
        super().__init__(
            name,
            model,
            instructions,
            tools,
            input=input_type,
            limits=limits or LIMITS,
            queue=queue,
            think_timeout_seconds=think_timeout_seconds,
            step_deadline_seconds=step_deadline_seconds,
            description=inspect.getdoc(function) or "",
            max_output_tokens=max_output_tokens,
            price=price,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, R]:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Workflow({self.name!r})"

    @property
    def has_model(self) -> bool:
        """Whether its code may call `ctx.model`."""
        return self.model != NO_MODEL

    def begin(self, context: WorkflowContext, stored: JsonValue) -> Coroutine[Any, Any, R]:
        """The coroutine for an input as it was stored. Raises `InvalidInput` if the type of today
        does not take it."""
        if not self._takes_input:
            return self.function(context)
        return self.function(context, stored if self.input is None else self.input.read(stored)[1])

    def read_result(self, result: JsonValue) -> Any:
        return self._result(result)

    def tool(self, name: str) -> Tool[..., Any]:
        """The tool of that name. Raises `InvalidInput` if the workflow does not list it."""
        for each in self.tools:
            if each.name == name:
                return each
        raise InvalidInput(
            f"{name} is none of the tools of workflow {self.name}; list it in @workflow(tools=...)"
        )

    def child(self, agent: Agent | str) -> Agent:
        """The agent or workflow of that name, perhaps this one. Raises `InvalidInput` if it is not
        listed."""
        name = agent if isinstance(agent, str) else agent.name
        for each in (*self.agents, self):
            if each.name == name:
                return each
        raise InvalidInput(
            f"{name} is none of the agents of workflow {self.name}; list it in "
            "@workflow(agents=...)"
        )

    def check_model(self) -> None:
        """Raise `InvalidInput` if there is no model to ask."""
        if not self.has_model:
            raise InvalidInput(
                f"workflow {self.name} has no model to ask; give it one in @workflow(model=...)"
            )

    def as_handoff(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        approval: Approval | None = None,
    ) -> NoReturn:
        raise InvalidAgent(f"workflow {self.name} cannot take a conversation over; use as_tool")

    def definition(self) -> dict[str, JsonValue]:
        return {
            **super().definition(),
            "workflow": {
                "code_hash": self.code_hash,
                "agents": [each.name for each in self.agents],
            },
        }


@overload
def workflow(function: Code[R], /) -> Workflow[R]: ...


@overload
def workflow(
    *,
    name: str | None = None,
    tools: Sequence[Tool[..., Any]] = (),
    agents: Sequence[Agent] = (),
    model: "Model | str" = NO_MODEL,
    instructions: str = "",
    limits: Limits | None = None,
    queue: str = DEFAULT_QUEUE,
    think_timeout_seconds: float = 120.0,
    step_deadline_seconds: float | None = None,
    max_output_tokens: int | None = None,
    price: Price | None = None,
) -> Callable[[Code[R]], Workflow[R]]: ...


def workflow(
    function: Code[R] | None = None, /, *, name: str | None = None, **options: Any
) -> Workflow[R] | Callable[[Code[R]], Workflow[R]]:
    """Make an `async def` function a workflow, as `@workflow` or `@workflow(tools=[...])`.

    The function takes a `WorkflowContext` and, if it likes, one input, whose type a run's input
    must fit. `tools` are what `ctx.activity` may call, `agents` what `ctx.child` may start, agents
    and other workflows alike, and `model` is whom `ctx.model` asks.

    Raises `InvalidAgent` if the parts contradict each other.
    """

    def make(function: Code[R]) -> Workflow[R]:
        called = getattr(function, "__name__", repr(function)) if name is None else name
        return Workflow(function, called, **options)

    return make if function is None else make(function)


def _read_signature(name: str, function: Callable[..., object]) -> tuple[bool, Any, Any]:
    """Whether it takes an input, of what type, and of what type its result is."""
    if not inspect.iscoroutinefunction(function):
        raise InvalidAgent(f"workflow {name}: {function!r} is no function made by async def")
    parameters = list(inspect.signature(function).parameters.values())
    if not 1 <= len(parameters) <= 2 or any(
        each.kind not in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters
    ):
        raise InvalidAgent(f"workflow {name}: its function takes ctx and, if it likes, one input")
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidAgent(
            f"workflow {name}: its types cannot be read: {error}. Every type must be known at "
            "module level when the workflow is made, so import it outside `if TYPE_CHECKING`"
        ) from error
    takes_input = len(parameters) == 2
    # Without one, a run's input is null: nothing that is given would be lost.
    given = hints.get(parameters[1].name) if takes_input else type(None)
    return takes_input, None if given is Any else given, hints.get("return", Any)


def _check_tools(name: str, tools: Sequence[object]) -> None:
    for each in tools:
        if isinstance(each, Tool) and each.agent is not None:
            raise InvalidAgent(
                f"workflow {name}: {each.name} is an agent; list {each.agent.name} in agents=, and "
                "start it with ctx.child"
            )
        if isinstance(each, Tool) and each.flags.sleeps:
            raise InvalidAgent(f"workflow {name}: instead of {each.name}, use ctx.sleep")


def _check_agents(name: str, agents: Sequence[object]) -> None:
    for each in agents:
        if not isinstance(each, Agent):
            raise InvalidAgent(f"workflow {name}: {each!r} is neither an agent nor a workflow")


def _code_hash(function: Callable[..., object]) -> str:
    """sha256 of the function's source, 64 hex digits. Not of what it calls."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except OSError:
        source = function.__code__.co_code.hex()
    return hashlib.sha256(source.encode()).hexdigest()
