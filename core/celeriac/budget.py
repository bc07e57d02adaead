"""What runs may use and cost together: of what, whose, and what happens at the limit.

The rows are in `celeriac_storage.budgets`; `docs/budgets.md` says how they are kept.
"""

from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Literal

from celeriac.errors import InvalidInput

Scope = Literal["tenant", "user", "thread", "run"]
"""Whose use is counted together: that of all runs of the tenant, user or thread, or of one run."""

OnExceeded = Literal["pause", "fail"]
"""What becomes of a run whose next step does not fit: it waits for a top-up, or ends."""

MAX_AMOUNT = Decimal(10) ** 18


class Measure(StrEnum):
    TOKENS = "tokens"  # input and output together
    USD = "usd"
    STEPS = "steps"
    TOOL_CALLS = "tool_calls"
    SECONDS = "seconds"  # that steps took, waits between them not counted


def checked_measure(word: str) -> Measure:
    """Raises `InvalidInput` for a word that names none."""
    try:
        return Measure(word)
    except ValueError:
        raise InvalidInput(
            f"{word!r} is nothing that a budget measures: give one of {', '.join(Measure)}"
        ) from None


@dataclass(frozen=True, slots=True)
class Use:
    """What a step used, by measure. None: nobody knows, and what was reserved stays so."""

    amounts: dict[Measure, Decimal | None] = field(default_factory=dict)
    warned: tuple[int, ...] = ()  # budgets whose soft limit the step's events tell of


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of a budget. Without a hard limit, what is used is only counted.

    Raises `InvalidInput` for a limit that is negative or no number, and for a soft limit above the
    hard one, which nothing would ever reach.
    """

    hard_limit: Decimal | None = None
    soft_limit: Decimal | None = None
    on_exceeded: OnExceeded = "pause"

    def __post_init__(self) -> None:
        for name in ("hard_limit", "soft_limit"):
            limit: Decimal | None = getattr(self, name)
            if limit is not None and not (limit.is_finite() and 0 <= limit <= MAX_AMOUNT):
                raise InvalidInput(
                    f"{name} is {limit}; it must be a number from 0 to {MAX_AMOUNT:.0e}"
                )
        if (
            self.hard_limit is not None
            and self.soft_limit is not None
            and self.soft_limit > self.hard_limit
        ):
            raise InvalidInput(
                f"the soft limit {self.soft_limit} is above the hard limit {self.hard_limit}, so "
                "that nobody would ever be warned; give a lower one"
            )


def amount(text: str, what: str) -> Decimal:
    """The number that `text` writes, exactly. Raises `InvalidInput`, which names `what`."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise InvalidInput(f"{what} is {text!r}; give a number such as 12.50")
    return number
