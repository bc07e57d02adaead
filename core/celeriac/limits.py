"""How much one run may take, counted across all its crashes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from celeriac.codec import JsonValue
from celeriac.errors import InvalidAgent

_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Use:
    """What a run has taken so far."""

    steps: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    wall_seconds: float = 0.0  # since the run's first claim, pauses included


@dataclass(frozen=True, slots=True)
class Limits:
    """The most one run may take. Stored with the run when it starts, so a deploy changes nothing."""

    steps: int = 100  # think and act transitions
    tool_calls: int = 200
    tokens: int = 1_000_000  # input and output together
    wall_seconds: float = 7 * _DAY_SECONDS
    corrections: int = 3  # answers in a row that had to be refused, each with a question back

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not value > 0 or value == float("inf"):
                raise InvalidAgent(f"limit {field.name} is {value!r}; it must be a number above 0")

    def exceeded(self, use: Use) -> str | None:
        """A sentence that names the limit which forbids another step after `use`, if one does."""
        tokens = use.input_tokens + use.output_tokens
        for name, used, limit in (
            ("steps", use.steps, self.steps),
            ("tokens", tokens, self.tokens),
            ("wall_seconds", round(use.wall_seconds, 3), self.wall_seconds),
        ):
            if used >= limit:
                return f"the run has used {used} of {limit} {name}"
        return None

    def to_json(self) -> dict[str, JsonValue]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, JsonValue]) -> "Limits":
        """The limits as a run stored them; one that it does not know has its default."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in known})  # type: ignore[arg-type]  # checked by __post_init__
