"""What a tool declares about calls that fail or get lost: where to look, what to repeat.

def find_refund(ctx: ToolContext) -> Done | NotDone | Unclear:
    refund = payments.find(key=ctx.idempotency_key)
    return NotDone() if refund is None else Done({"refund_id": refund.id})

@tool(effect="external", verify=find_refund, visibility_seconds=2.0)
def issue_refund(ctx: ToolContext, order_id: str, cents: int) -> dict[str, str]: ...
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from celeriac import companions, seconds
from celeriac.backoff import Backoff
from celeriac.context import ToolContext
from celeriac.errors import InvalidAgent, ToolError
from celeriac.states import EffectKind

OnUnknown = Literal["ask", "verify", "resend"]

MAX_LOOKS = 6
"""How often a target is asked that cannot tell, before a person is; the waits double in between."""
LOOK_BACKOFF = Backoff(first_seconds=1.0, factor=2.0, cap_seconds=60.0, max_attempts=MAX_LOOKS)

MAX_ATTEMPTS = 1000
"""The most that `Retry` may allow; effects count their attempts in a smallint."""

MAX_SENDS = 5
"""How often one call is made with the same key while its outcome stays unknown."""


@dataclass(frozen=True, slots=True)
class Done:
    """The call took effect. The model is told what the tool returned; if that got lost, or could
    not be believed at once, `result`, unless it is None."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class NotDone:
    """The call changed nothing and certainly will not later. It may be made again, key and all."""


@dataclass(frozen=True, slots=True)
class Unclear:
    """The target cannot tell just now."""

    why: str


Finding = Done | NotDone | Unclear
"""What a `verify` function returns. Any exception counts as `Unclear`."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Calls that failed without any effect are made again after a while.

    `on` are the exceptions that are worth it. For an external tool only a `ToolError`, or a class
    derived from it, says that nothing was changed: others leave the outcome unknown, and `Retry`
    does not apply. Between attempts the run is paused and holds no worker; the count is stored.
    """

    attempts: int = 3  # in all
    on: tuple[type[Exception], ...] = (ToolError,)
    first_seconds: float = 1.0  # doubles from attempt to attempt, with jitter
    longest_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= MAX_ATTEMPTS:
            raise InvalidAgent(
                f"Retry(attempts={self.attempts!r}) is no number of attempts from 1 to "
                f"{MAX_ATTEMPTS}"
            )
        for name in ("first_seconds", "longest_seconds"):
            if wrong := seconds.problem(name, getattr(self, name)):
                raise InvalidAgent(f"Retry: {wrong}")
        if self.first_seconds > self.longest_seconds:
            raise InvalidAgent(
                f"Retry(first_seconds={self.first_seconds}, longest_seconds="
                f"{self.longest_seconds}): the first must not be the longer one"
            )

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.first_seconds, 2.0, self.longest_seconds, self.attempts)


@dataclass(frozen=True)
class Recovery:
    """A tool's declaration, checked when the tool is made."""

    verify: Callable[..., Finding] | None = None
    on_unknown: OnUnknown = "ask"
    visibility_seconds: float = 0.0
    retry: Retry | None = None

    @property
    def is_for_people(self) -> bool:
        """Whether only a person can say what came of a lost call."""
        return self.verify is None and self.on_unknown != "resend"

    def contradiction(self, effect: EffectKind, parameters: Sequence[str]) -> str | None:
        """What of it cannot be true of a tool of this kind with these parameters; else None."""
        if self.on_unknown not in ("ask", "verify", "resend"):
            return f'on_unknown={self.on_unknown!r} is none of "ask", "verify", "resend"'
        if wrong := seconds.problem("visibility_seconds", self.visibility_seconds, least=0):
            return wrong
        is_plain = self.verify is None and self.on_unknown == "ask" and not self.visibility_seconds
        if effect is not EffectKind.EXTERNAL and not is_plain:
            return (
                "verify, on_unknown and visibility_seconds are about effects elsewhere, but "
                f'effect="{effect}" has none that could get lost; drop them'
            )
        if self.on_unknown == "verify" and self.verify is None:
            return 'on_unknown="verify" asks a verify function, and there is none; give verify='
        if self.verify is None:
            return None
        return companions.contradiction("verify", self.verify, parameters)

    def look(self, context: ToolContext, arguments: Mapping[str, Any]) -> Finding:
        """Ask `verify`, with those of the tool's `arguments` that it takes."""
        assert self.verify is not None
        finding = companions.call(self.verify, context, arguments)
        if isinstance(finding, Done | NotDone | Unclear):
            return finding
        return Unclear(f"verify returned {finding!r}, which is no Done, NotDone or Unclear")
