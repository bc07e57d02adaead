"""What a run's error says of an exception that a workflow's code did not catch, and which entries
of its log are behind that."""

import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path

from celeriac.codec import JsonValue
from celeriac.errors import ActivityFailed, CeleriacError
from celeriac.secrets import redact

MAX_MESSAGE_CHARACTERS = 2000
_OURS = Path(__file__).parents[1]
_PYTHONS = Path(sysconfig.get_path("stdlib"))


def report(error: Exception) -> dict[str, JsonValue]:
    """`kind`, `message`, and where in the code it was raised (`at`); of something that failed
    outside of the code also what is known of that (`cause`)."""
    is_told = isinstance(error, CeleriacError)
    message = str(error) if is_told else f"{type(error).__name__}: {error}"
    told: dict[str, JsonValue] = {
        "kind": "workflow_failed",
        # Before the cut: half a secret is not recognised.
        "message": redact(message)[:MAX_MESSAGE_CHARACTERS],
    }
    if (at := _place(error)) is not None:
        told["at"] = at
    if isinstance(error, ActivityFailed):
        told["kind"] = "activity_failed"
        told["cause"] = error.error
    return told


def _place(error: Exception) -> str | None:
    """The innermost line that neither celeriac nor Python brought: `shop.py:12, in ship_order`."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if not file.is_relative_to(_OURS) and not _is_pythons(file):
            return f"{file.name}:{frame.lineno}, in {frame.name}"
    return None


def _is_pythons(file: Path) -> bool:
    """Whether it is of the standard library, in whose folder installed packages lie, too."""
    return file.is_relative_to(_PYTHONS) and not {"site-packages", "dist-packages"} & {*file.parts}


class Failures:
    """The failed entries that the code knows of, and which errors came together."""

    def __init__(self) -> None:
        self._entries: list[tuple[int, ActivityFailed]] = []
        self._together: list[Sequence[Exception]] = []

    def note(self, number: int, error: ActivityFailed) -> None:
        """An entry has failed."""
        self._entries.append((number, error))

    def note_together(self, errors: Sequence[Exception]) -> None:
        """The first of them is raised, and the others are told to nobody."""
        if len(errors) > 1:
            self._together.append(errors)

    def behind(self, error: Exception) -> list[int]:
        """The entries by whose failure the code has failed, for a retry to ask for them anew.

        What the code has caught and gone on from is its past. But what came together with the
        error would be the next that a retry fails by.
        """
        raised = _chain(error)
        for errors in reversed(self._together):  # an outer gather is over after an inner one
            if id(errors[0]) in raised:
                raised |= set().union(*map(_chain, errors))
        return sorted(number for number, failed in self._entries if id(failed) in raised)


def _chain(error: BaseException) -> set[int]:
    """The identities of the error and of what it was raised for.

    An `ActivityFailed` is raised for nothing else: where it was awaited while another was handled,
    that is no cause of it.
    """
    seen: set[int] = set()
    left: list[BaseException] = [error]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
        if each.__cause__ is not None:
            left.append(each.__cause__)
        elif (
            each.__context__ is not None
            and not each.__suppress_context__
            and not isinstance(each, ActivityFailed)
        ):
            left.append(each.__context__)
    return seen
