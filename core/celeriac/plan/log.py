"""The lines in the log of a plan's run that are not steps under way.

The log begins with the steps that an earlier run has completed, and then has a line with the result
of each. They are values as of `ctx.value`, recorded before the code asks for them.
"""

from collections.abc import Sequence

from celeriac.codec import JsonValue
from celeriac.workflows.entry import Asked, EntryKind

KEPT = "plan.kept"
REFUSED = "plan.refused"
"""A step that cannot be asked for with the arguments that results have made of it."""


def kept_name(step_id: str) -> str:
    return f"{KEPT} {step_id}"


def refused_name(step_id: str) -> str:
    return f"{REFUSED} {step_id}"


def first_lines(kept: Sequence[str]) -> list[Asked]:
    """With which the log of a run begins that keeps these steps; without their results."""
    ids: list[JsonValue] = list(kept)
    return [
        Asked(0, EntryKind.VALUE, KEPT, value=ids),
        *(
            Asked(number, EntryKind.VALUE, kept_name(step_id), label=step_id)
            for number, step_id in enumerate(kept, 1)
        ),
    ]
