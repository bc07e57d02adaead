"""How the effect of a tool's call is taken back: declared with the tool, done by a run of its own.

@tool(effect="transactional", rollback=InBand(put_back))
def deduct(ctx: ToolContext, sku: str, quantity: int) -> int: ...

def put_back(ctx: ToolContext, sku: str, quantity: int) -> None: ...

An undo has the effect of its tool: of a transactional tool it writes through `ctx.connection`, of
an external one it is called with an idempotency key of its own, and looked after when it gets lost.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal

from celeriac import companions, seconds
from celeriac.errors import InvalidAgent
from celeriac.recovery import Finding, OnUnknown, Recovery, Retry
from celeriac.states import EffectKind

RollbackName = Literal["out_of_band", "none"]
UNDO_SUFFIX = ".undo"
"""What follows the name of a tool in the name of its undo. No tool's own name has a dot."""


class Rollback(StrEnum):
    """How a tool's effect can be taken back."""

    IN_BAND = "in_band"  # by its inverse, in the same place
    COMPENSATE = "compensate"  # by another action that makes up for it
    OUT_OF_BAND = "out_of_band"  # by people, outside of this system
    NONE = "none"  # not at all: needs two approvers or a checklist


@dataclass(frozen=True)
class Undo:
    """The function that takes a call back, and what `@tool` says of its own: how a lost undo of an
    external tool is found out about, and what is tried again.

    `undo` takes the `ToolContext`, and by name any of the tool's parameters and `result`, which is
    what the call returned. Use `InBand` or `Compensate`.
    """

    undo: Callable[..., Any]
    verify: Callable[..., Finding] | None = None
    on_unknown: OnUnknown = "ask"
    visibility_seconds: float = 0.0
    timeout_seconds: float | None = None  # None: what the tool itself has
    retry: Retry | None = None

    kind: ClassVar[Rollback]

    @property
    def recovery(self) -> Recovery:
        return Recovery(self.verify, self.on_unknown, self.visibility_seconds, self.retry)

    def contradiction(self, effect: EffectKind, parameters: Sequence[str]) -> str | None:
        """What of it cannot be true of a tool of this kind with these parameters; else None."""
        called = type(self).__name__
        if effect is EffectKind.NONE:
            return f'rollback={called}(...) takes an effect back, and effect="none" has none'
        if companions.RESULT in parameters:
            return (
                f"a parameter is called {companions.RESULT}, which to an undo is what the call "
                "returned; give the parameter another name"
            )
        if self.timeout_seconds is not None and (
            wrong := seconds.problem(
                "timeout_seconds", self.timeout_seconds, most=seconds.MAX_CALL_SECONDS
            )
        ):
            return f"{called}: {wrong}"
        known = (*parameters, companions.RESULT)
        return companions.contradiction("undo", self.undo, known) or self.recovery.contradiction(
            effect, known
        )


class InBand(Undo):
    """The inverse, in the same place: afterwards the call is `rolled_back`."""

    kind = Rollback.IN_BAND


class Compensate(Undo):
    """An action that makes up for it: the call stays as it is, with a second one beside it."""

    kind = Rollback.COMPENSATE


def read_rollback(declared: RollbackName | Rollback | Undo) -> tuple[Rollback, Undo | None]:
    """The kind that is declared, and how it is done, if Celeriac is to do it."""
    if isinstance(declared, Undo):
        if not hasattr(declared, "kind"):
            raise InvalidAgent("rollback=Undo(...) does not say which; give InBand or Compensate")
        return declared.kind, declared
    try:
        kind = Rollback(declared)
    except ValueError:
        known = ", ".join(repr(kind.value) for kind in (Rollback.OUT_OF_BAND, Rollback.NONE))
        raise InvalidAgent(
            f"rollback={declared!r} is none of InBand(undo), Compensate(undo), {known}"
        ) from None
    wanted = {Rollback.IN_BAND: "InBand", Rollback.COMPENSATE: "Compensate"}.get(kind)
    if wanted is not None:
        raise InvalidAgent(
            f'rollback="{kind}" does not say how: give rollback={wanted}(undo), with a function '
            "that takes the ToolContext and any of the tool's parameters"
        )
    return kind, None
