"""The text that a run's model is writing just now, and how much of it a reader has been shown.

What a reader is shown is never the last word: the event that ends the attempt is. So it is shown
the pieces of one attempt at a time, the latest, in their order and without a gap, or none; and when
that attempt comes to nothing, it is told to drop them.
"""

from celeriac.codec import JsonValue
from celeriac.reports import Event
from celeriac.sse import Frame, to_data
from celeriac.states import RunStatus
from celeriac_storage.reading import Position
from celeriac_tasks.text_stream import Attempt, Piece

_ANSWERED = "model.answered"
_ENDS_ATTEMPT = frozenset(
    {_ANSWERED, "model.failed", "model.questioned", "model.interrupted", "run.recovered",
     "run.stumbled", "run.needs_attention"}
)  # fmt: skip
_ALL_STEPS = 2**31


class TextInProgress:
    """The latest attempt of a run and its pieces so far, put together from pieces that may come
    twice, late, from workers that lost their claim, or not at all."""

    def __init__(self, position: Position) -> None:
        """`position` is where the run stood when its events were read that `note` did not get."""
        self.attempt: Attempt | None = None
        self.pieces: list[str] = []
        is_running = position.status is RunStatus.RUNNING
        # All that is over: who holds the claim is at this step, and earlier claims are void.
        self._over = Attempt(position.epoch, position.step - 1 if is_running else _ALL_STEPS)

    def add(self, piece: Piece) -> bool:
        """Whether this was news."""
        attempt = piece.attempt
        if attempt <= self._over or (self.attempt is not None and attempt < self.attempt):
            return False
        if attempt != self.attempt:
            self.attempt, self.pieces = attempt, []
        if piece.index > len(self.pieces):
            # One got lost, and half a text is worse than none: the event will have it all.
            self._end(attempt)
            return True
        if piece.index < len(self.pieces):
            return False
        self.pieces.append(piece.text)
        return True

    def note(self, event: Event) -> None:
        """The run's history goes on: an attempt may be over with this event."""
        ended = attempt_ended_by(event)
        if ended is None and (event.is_terminal or event.type == "run.paused"):
            ended = self.attempt
        if ended is not None:
            self._end(ended)

    def _end(self, attempt: Attempt) -> None:
        self._over = max(self._over, attempt)
        if self.attempt is not None and self.attempt <= self._over:
            self.attempt, self.pieces = None, []


class Shown:
    """What one reader has been shown of it."""

    def __init__(self) -> None:
        self._attempt: Attempt | None = None
        self._pieces = 0

    def before(self, event: Event) -> list[Frame]:
        """What the reader must be told before it gets this event."""
        shown = self._attempt
        if shown is None:
            return []
        ended = attempt_ended_by(event)
        if event.type == _ANSWERED and ended is not None and ended.step >= shown.step:
            self._attempt = None  # the event itself says so, and has the text
            return []
        is_over = ended is not None and shown <= ended
        if is_over or event.is_terminal or event.type == "run.paused":
            return self._superseded()
        return []

    def news(self, text: TextInProgress) -> list[Frame]:
        """What the reader has not been shown yet, after all events that are known."""
        frames: list[Frame] = []
        if self._attempt not in (None, text.attempt):
            assert self._attempt is not None
            if text.attempt is not None and text.attempt.step > self._attempt.step:
                self._attempt = None  # it was answered, and that event is on its way
            else:
                frames = self._superseded()
        if text.attempt is None:
            return frames
        if self._attempt is None:
            self._attempt, self._pieces = text.attempt, 0
        for index in range(self._pieces, len(text.pieces)):
            data: dict[str, JsonValue] = {"index": index, "text": text.pieces[index]}
            frames.append(_frame("text.delta", text.attempt, data))
        self._pieces = len(text.pieces)
        return frames

    def _superseded(self) -> list[Frame]:
        assert self._attempt is not None
        frame = _frame("superseded", self._attempt, {})
        self._attempt = None
        return [frame]


def attempt_ended_by(event: Event) -> Attempt | None:
    """The attempt that is over with this event, and all before it."""
    if event.type not in _ENDS_ATTEMPT:
        return None
    epoch, step = event.data.get("epoch"), event.data.get("step")
    return Attempt(epoch, step) if isinstance(epoch, int) and isinstance(step, int) else None


def _frame(name: str, attempt: Attempt, data: dict[str, JsonValue]) -> Frame:
    # Without an id: a reader that comes back goes on from the last event.
    told: dict[str, JsonValue] = {"step": attempt.step, "epoch": attempt.epoch, **data}
    return Frame(to_data(told), name)
