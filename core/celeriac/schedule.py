"""What a schedule is made of, checked before anything is written."""

from dataclasses import dataclass
from typing import Literal, get_args

from celeriac import seconds
from celeriac.cron import Cron
from celeriac.errors import InvalidInput

Overlap = Literal["skip", "queue", "cancel_running", "allow"]
"""What to do when a time comes and the run of an earlier one has not ended: leave it out; start it
after that one, each in turn; cancel that one and start it then; or start it beside that one."""

CatchUp = Literal["none", "last", "all"]
"""Which of the times to make up for that passed while no scheduler was there."""

MAX_CATCH_UP = 1000
MAX_JITTER_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """Runs of an agent with an input, at the times of a cron expression in a time zone.

    `catch_up_limit` bounds "all": the latest so many. Raises `InvalidInput`.
    """

    agent: str
    cron: str
    input: object
    time_zone: str = "UTC"
    overlap: Overlap = "skip"
    catch_up: CatchUp = "last"
    catch_up_limit: int = 10
    jitter_seconds: float = 0.0

    def __post_init__(self) -> None:
        Cron(self.cron, self.time_zone)
        if self.overlap not in get_args(Overlap):
            raise InvalidInput(
                f"overlap={self.overlap!r} is none of {', '.join(get_args(Overlap))}"
            )
        if self.catch_up not in get_args(CatchUp):
            raise InvalidInput(
                f"catch_up={self.catch_up!r} is none of {', '.join(get_args(CatchUp))}"
            )
        limit: object = self.catch_up_limit
        if type(limit) is not int or not 1 <= limit <= MAX_CATCH_UP:
            raise InvalidInput(
                f"catch_up_limit={limit!r} is no whole number from 1 to {MAX_CATCH_UP}"
            )
        if wrong := seconds.problem(
            "jitter_seconds", self.jitter_seconds, least=0, most=MAX_JITTER_SECONDS
        ):
            raise InvalidInput(wrong)
