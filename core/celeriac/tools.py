"""Tools: functions that a model may call, with what each of them does to the world.

@tool(effect="transactional")
def deduct_inventory(ctx: ToolContext, item: str, quantity: int) -> str:
    \"\"\"Take `quantity` pieces of `item` out of the stock.\"\"\"
"""

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NewType, ParamSpec, TypeVar, cast, overload

from celeriac import precondition as preconditions
from celeriac import seconds
from celeriac.approval import Approval
from celeriac.codec import JsonValue, loads_strict
from celeriac.context import ToolContext
from celeriac.docstrings import read_docstring
from celeriac.errors import InvalidAgent, InvalidArguments, InvalidInput
from celeriac.parameters import Parameters, read_parameters
from celeriac.precondition import Precondition
from celeriac.recovery import Finding, OnUnknown, Recovery, Retry
from celeriac.results import acceptable_schemas
from celeriac.rollback import Rollback, RollbackName, Undo, read_rollback
from celeriac.schemas import strict_json
from celeriac.states import EffectKind
from celeriac.tool_flags import ToolFlags
from celeriac.workflows import guard

if TYPE_CHECKING:
    from pydantic_ai.tools import ToolDefinition

    from celeriac.agent import Agent

P = ParamSpec("P")
R = TypeVar("R")

ValidArguments = NewType("ValidArguments", dict[str, JsonValue])
"""The arguments of one call in their canonical form (`Shape.read`), checked by `Tool.validate`."""

EffectName = Literal["none", "transactional", "external"]

DEFAULT_TIMEOUT_SECONDS = 60.0
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What the model providers allow as the name of a tool."""


@dataclass(frozen=True, eq=False)
class Tool(Generic[P, R]):
    """A registered tool; made by `@tool`. Calling it calls the plain function, without checks; in
    the code of a workflow it raises `TypeError`, since each replay would make the call again."""

    name: str
    description: str
    function: Callable[P, R]
    effect: EffectKind
    version: str
    timeout_seconds: float
    flags: ToolFlags
    recovery: Recovery
    precondition: Precondition | None
    rollback: Rollback
    undo: Undo | None
    approval: Approval | None
    parameters: Parameters = field(repr=False)
    undoes: str | None = None
    """Of an undo (`celeriac.undo_tool`): the tool whose calls it takes back."""
    agent: "Agent | None" = None
    """Whose runs answer the calls (`celeriac.delegation`)."""

    def __post_init__(self) -> None:
        if self.undoes is not None:
            return  # checked with the tool that declares it
        if not NAME.fullmatch(self.name):
            raise InvalidAgent(
                "model providers allow only 1 to 64 letters, digits, _ and - in a name; "
                'give another with @tool(name="...")'
            )
        if wrong := seconds.problem(
            "timeout_seconds", self.timeout_seconds, most=seconds.MAX_CALL_SECONDS
        ):
            raise InvalidAgent(wrong)
        if not self.version:
            raise InvalidAgent("its version is empty; give a text such as '1'")
        if not self.description:
            raise InvalidAgent(
                "it has no description; say in its docstring what it does, since the model "
                "decides by that when to call it"
            )
        if contradiction := self.flags.contradiction(
            self.effect, takes_context=self.takes_context, is_async=self.is_async
        ):
            raise InvalidAgent(contradiction)
        if contradiction := self.recovery.contradiction(self.effect, self.parameters.names):
            raise InvalidAgent(contradiction)
        if self.precondition and (
            contradiction := preconditions.contradiction(
                self.precondition, self.effect, self.parameters.names, self.recovery.on_unknown
            )
        ):
            raise InvalidAgent(contradiction)
        if self.undo and (
            contradiction := self.undo.contradiction(self.effect, self.parameters.names)
        ):
            raise InvalidAgent(contradiction)
        if self.approval and (problem := self.approval.problem_with(self.parameters.names)):
            raise InvalidAgent(problem)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        guard.refuse_call(self.name)
        return self.function(*args, **kwargs)

    @property
    def parameters_schema(self) -> dict[str, JsonValue]:
        """The JSON schema of the arguments: always an object, closed to other names."""
        return self.parameters.schema

    @property
    def longest_seconds(self) -> float:
        """How long a step with one call of it, or with one undo, may take: the call and each look
        that is declared for it have as long as its timeout says."""
        looks = [self.precondition, self.recovery.verify]
        if self.recovery.on_unknown == "resend":  # one step looks, sends, and looks again
            looks.append(self.recovery.verify)
        longest = self.timeout_seconds * (1 + sum(look is not None for look in looks))
        if self.undo is None:
            return longest
        undo_seconds = self.undo.timeout_seconds or self.timeout_seconds
        return max(longest, undo_seconds * (1 + (self.undo.verify is not None)))

    @property
    def takes_context(self) -> bool:
        return self.parameters.context is not None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    def validate(self, arguments: JsonValue) -> ValidArguments:
        """The canonical form of `arguments`, which is what to store, hash, show and execute.

        `None` is what `parse_arguments` returns if the provider delivered nothing; only a tool
        without parameters takes that. Raises `InvalidArguments`, worded for the model.
        """
        if arguments is None:
            if self.parameters.names:
                raise self._refusal("none were sent")
            arguments = {}
        try:
            canonical, _ = self.parameters.shape.read(arguments)
        except InvalidAgent:  # the type's fault: no correction of the arguments would help
            raise
        except InvalidInput as error:
            raise self._refusal(error) from error
        return ValidArguments(cast(dict[str, JsonValue], canonical))

    def call_arguments(
        self, canonical: JsonValue, context: ToolContext | None = None
    ) -> dict[str, Any]:
        """The keyword arguments for `function`: Python objects, and `context` if it takes one.

        Checks once more, because the code may have changed since the arguments were stored: raises
        `InvalidArguments` if they are not complete and valid as they are.
        """
        try:
            keywords = self.parameters.restore(canonical)
        except InvalidAgent:
            raise
        except InvalidInput as error:
            raise self._refusal(error) from error
        if self.parameters.context is not None and context is not None:
            keywords[self.parameters.context] = context
        return keywords

    def definition(self) -> "ToolDefinition":
        """What pydantic-ai tells the model about this tool."""
        # Importing pydantic-ai takes a second, which whoever only starts runs need not wait.
        from pydantic_ai.tools import ToolDefinition

        return ToolDefinition(
            name=self.name,
            description=self.description,
            parameters_json_schema=copy.deepcopy(self.parameters_schema),
        )

    def registration(self) -> dict[str, JsonValue]:
        """The tool's part of the agent's row in the registry."""
        results = acceptable_schemas(self.function)
        return {
            "name": self.name,
            "description": self.description,
            "effect": self.effect.value,
            "version": self.version,
            "timeout_seconds": self.timeout_seconds,
            "flags": self.flags.to_json(),
            "rollback": self.rollback.value,
            "approval": None if self.approval is None else self.approval.to_json(),
            "parameters_schema": copy.deepcopy(self.parameters.shape.exact_schema),
            **({} if self.agent is None else {"agent": self.agent.name}),
            **({"result_schemas": results} if results else {}),
        }

    def _refusal(self, problems: InvalidInput | str) -> InvalidArguments:
        return InvalidArguments(
            f"The arguments of {self.name} cannot be used and nothing was executed: {problems}"
        )


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    effect: EffectName | EffectKind | None = None,
    name: str | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    version: str = "1",
    exclusive: bool = False,
    stateful: bool | None = None,
    mutates_workspace: bool = False,
    pagination: bool = False,
    verifies: bool = False,
    verify: Callable[..., Finding] | None = None,
    on_unknown: OnUnknown = "ask",
    visibility_seconds: float = 0.0,
    retry: Retry | None = None,
    precondition: Precondition | None = None,
    rollback: RollbackName | Rollback | Undo = Rollback.OUT_OF_BAND,
    approval: Approval | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    effect: EffectName | EffectKind | None = None,
    name: str | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    version: str = "1",
    exclusive: bool = False,
    stateful: bool | None = None,
    mutates_workspace: bool = False,
    pagination: bool = False,
    verifies: bool = False,
    verify: Callable[..., Finding] | None = None,
    on_unknown: OnUnknown = "ask",
    visibility_seconds: float = 0.0,
    retry: Retry | None = None,
    precondition: Precondition | None = None,
    rollback: RollbackName | Rollback | Undo = Rollback.OUT_OF_BAND,
    approval: Approval | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function a tool, as `@tool` or `@tool(effect=...)`.

    The model sees the function's name (or `name`), the first paragraph of its docstring, and the
    type and description of each parameter (Google, NumPy or Sphinx style). One parameter may be a
    `ToolContext`, which the model does not see. A call is given up after `timeout_seconds`.

    `effect` says what the function does to the world: "none" only reads, and runs again after a
    crash; "transactional" writes through `ctx.connection`, exactly once; "external" changes
    something elsewhere. A tool that does not say is treated as the kind that takes the most care,
    external and stateful. Change `version` when the same arguments come to mean something else.

    For an external tool, `verify` looks at the target and says whether the call took effect
    (`celeriac.recovery`). It is asked after a call that seems to have worked, and when a call got
    lost: then only `visibility_seconds` after the call is certainly over, which is how long the
    target may take to show what was done. If it cannot tell, or there is none, `on_unknown`
    decides: "ask" a person; "verify" again a few times, then ask; "resend" the same key, for a
    target that acts once per key. For any tool, `retry` repeats calls that failed without effect.

    `precondition` is asked right before each call, in the call's own transaction if the tool is
    transactional, and raises `ToolError` if the call must no longer be made
    (`celeriac.precondition`). Then nothing of the call is done, and a person is asked.

    `approval` says who must agree before the tool is called (`celeriac.approval`), and `rollback`
    how its effect can be taken back (`celeriac.rollback`): `InBand(undo)` by its inverse,
    `Compensate(undo)` by an action that makes up for it, "out_of_band" by people, or "none", and
    then two persons must approve, or answer a checklist.

    Raises `InvalidAgent` if the declaration contradicts itself or a model could not use the tool.
    """
    flags = ToolFlags(
        exclusive=exclusive,
        stateful=effect is None if stateful is None else stateful,
        mutates_workspace=mutates_workspace,
        pagination=pagination,
        verifies=verifies,
    )

    def make(function: Callable[P, R]) -> Tool[P, R]:
        called = getattr(function, "__name__", repr(function)) if name is None else name
        try:
            kind, undo = read_rollback(rollback)
            _check_function(function)
            about = read_docstring(function.__doc__ or "")
            return Tool(
                name=called,
                description=about.summary,
                function=function,
                effect=_effect_kind(effect),
                version=version,
                timeout_seconds=timeout_seconds,
                flags=flags,
                recovery=Recovery(verify, on_unknown, visibility_seconds, retry),
                precondition=precondition,
                rollback=kind,
                undo=undo,
                approval=approval,
                parameters=read_parameters(function, about.parameters),
            )
        except InvalidAgent as error:
            raise InvalidAgent(f"tool {called!r}: {error}") from error.__cause__

    return make if function is None else make(function)


def parse_arguments(raw: str | Mapping[str, object] | None) -> dict[str, JsonValue] | None:
    """The arguments of a call as a provider delivers them: JSON text, or an object read already.

    `None` means that nothing at all was delivered (`None` or an empty text), which is not the same
    as `{}`: taken for that, a call whose arguments got lost would run with its defaults. Raises
    `InvalidArguments` for all that is no JSON object: malformed, cut off, a key that stands twice,
    NaN, a list.
    """
    if raw is None or raw == "":
        return None
    try:
        value = loads_strict(raw) if isinstance(raw, str) else strict_json(dict(raw))
    except InvalidInput as error:
        raise InvalidArguments(
            f"The arguments cannot be read and nothing was executed: {error}. Send one JSON object"
        ) from error
    if not isinstance(value, dict):
        raise InvalidArguments(
            "The arguments are JSON but no object, so nothing was executed. "
            'Send one JSON object with a value for each parameter: {"name": value}'
        )
    return value


def _check_function(function: Callable[..., object]) -> None:
    if not inspect.isroutine(function):
        raise InvalidAgent(f"{function!r} is not a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidAgent("it yields values, but a call has one result; return a list")


def _effect_kind(effect: EffectName | EffectKind | None) -> EffectKind:
    if effect is None:
        return EffectKind.EXTERNAL
    try:
        return EffectKind(effect)
    except ValueError:
        known = ", ".join(repr(kind.value) for kind in EffectKind)
        raise InvalidAgent(f"effect={effect!r} is none of {known}") from None
