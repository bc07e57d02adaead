"""Places in a step where the next worker that comes by is held, so that it can be killed there."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Hold:
    """A test point of the workers (`docs/testing.md`) in one step of an order."""

    point: str
    step: int
    meaning: str

    @property
    def name(self) -> str:
        return f"{self.point}@{self.step}"


DEDUCTED = Hold("act.after_tool", 3, "the stock is deducted, in a transaction that is open")
ABOUT_TO_NOTIFY = Hold("think.before_model_call", 4, "it was deducted, and nobody is told yet")
HOLDS = (DEDUCTED, ABOUT_TO_NOTIFY)
HOLD_SECONDS = 30.0  # until somebody kills it; then it would just go on


class Holds:
    """The holds in a folder, all of them spent until one is armed.

    A hold acts if its file is not there, and leaves it. So the worker that takes the step over is
    not held again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def environment(self) -> Mapping[str, str]:
        """For the workers."""
        return {
            "CELERIAC_TEST_POINTS": ",".join(f"{hold.name}={HOLD_SECONDS:g}" for hold in HOLDS),
            "CELERIAC_TEST_POINTS_DIR": str(self._folder),
        }

    def make(self) -> None:
        """Make the folder, with every hold spent."""
        self._folder.mkdir()
        for hold in HOLDS:
            self.file(hold).touch()

    def arm(self, hold: Hold) -> None:
        """Hold the next worker that comes by."""
        self.file(hold).unlink()

    def has_caught(self, hold: Hold) -> bool:
        """Whether a worker has come by since it was armed."""
        return self.file(hold).exists()

    def file(self, hold: Hold) -> Path:
        """Removing it arms the hold."""
        return self._folder / hold.name
