"""How much one run may take, counted across all its crashes."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from celeriac.codec import JsonValue
from celeriac.errors import InvalidAgent

_DAY_SECONDS = 86_400.0
_NEWER = ("deadline_seconds", "depth", "children")


@dataclass(frozen=True, slots=True)
class Use:
    """What a run has taken so far."""

    steps: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    wall_seconds: float = 0.0  # since the run's first claim, without its pauses

    def __add__(self, other: "Use") -> "Use":
        return Use(
            self.steps + other.steps,
            self.tool_calls + other.tool_calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.wall_seconds + other.wall_seconds,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """The most one run may take. A run keeps the limits that it started with, whatever is deployed.

    Raises `InvalidAgent` for a limit that is not a number above 0.
    """

    steps: int = 100  # think and act transitions
    tool_calls: int = 200
    tokens: int = 1_000_000  # input and output together
    wall_seconds: float = 7 * _DAY_SECONDS
    corrections: int = 3  # answers in a row that may be refused and asked for again
    deadline_seconds: float | None = None  # from when the run may begin, its pauses included
    depth: int = 3  # levels of runs below the run, when agents call agents
    children: int = 20  # runs that the run may start in all, hand-offs included

    def __post_init__(self) -> None:
        # Each step of a run reads them: `asdict` would make this five times as long.
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if name == "deadline_seconds" and value is None:
                continue
            is_time = name.endswith("_seconds")
            kind = int | float if is_time else int
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                kinds = "number" if is_time else "whole number"
                raise InvalidAgent(f"limit {name} is {value!r}; it must be a {kinds} above 0")

    def exceeded(self, use: Use) -> str | None:
        """A sentence that names the limit which forbids another step after `use`, if one does.

        Steps, tokens and time that are used up forbid it. All tool calls may be used up, since the
        next step may do without; only more of them than allowed do.
        """
        tokens = use.input_tokens + use.output_tokens
        if use.steps >= self.steps:
            return _sentence("steps", use.steps, self.steps)
        if use.tool_calls > self.tool_calls:
            return _sentence("tool_calls", use.tool_calls, self.tool_calls)
        if tokens >= self.tokens:
            return _sentence("tokens", tokens, self.tokens)
        if use.wall_seconds >= self.wall_seconds:
            return _sentence("wall_seconds", round(use.wall_seconds, 3), self.wall_seconds)
        return None

    def to_json(self) -> dict[str, JsonValue]:
        """The limits as a run stores them: the newer ones only if they are not the default, so
        that the hashes of older agents stay what they are."""
        newer = {field.name: field.default for field in fields(self) if field.name in _NEWER}
        return {
            name: value
            for name, value in asdict(self).items()
            if name not in newer or value != newer[name]
        }

    def capped(self, left: "Limits") -> "Limits":
        """These limits, and at most those that are `left` to whoever starts the run."""
        return replace(
            self,
            steps=min(self.steps, left.steps),
            tool_calls=min(self.tool_calls, left.tool_calls),
            tokens=min(self.tokens, left.tokens),
            wall_seconds=min(self.wall_seconds, left.wall_seconds),
            depth=min(self.depth, left.depth),
            children=min(self.children, left.children),
        )

    def left(self, use: Use, shares: int) -> "Limits":
        """An equal share of what is left of these limits after `use`, at least one of each."""
        tokens = self.tokens - use.input_tokens - use.output_tokens
        return replace(
            self,
            steps=max(1, (self.steps - use.steps) // shares),
            tool_calls=max(1, (self.tool_calls - use.tool_calls) // shares),
            tokens=max(1, tokens // shares),
            wall_seconds=max(1.0, self.wall_seconds - use.wall_seconds),
        )

    @classmethod
    def from_json(cls, stored: Mapping[str, JsonValue]) -> "Limits":
        """The limits as a run stored them. One that is not stored has its default.

        A name that this version does not know is left out: a newer one started the run.
        """
        known: dict[str, Any] = {
            field.name: stored[field.name] for field in fields(cls) if field.name in stored
        }
        return cls(**known)


def _sentence(name: str, used: float, limit: float) -> str:
    return f"the run has used {used} of the {limit} {name} that its limits allow"
