"""A run's events over as many connections as it takes: each once, in order, up to the last."""

import json
from collections.abc import Iterator

from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Request
from celeriac.errors import UnexpectedAnswer
from celeriac.ids import RunId
from celeriac.reports import Event
from celeriac.sse import Decoder

SILENCE_SECONDS = 40.0
"""A service that lives says something every 15 s; one that is silent for so long is gone."""
LASTS_SECONDS = 900.0
"""Then the service ends a stream, and its reader comes back."""

_event = reader(Event)


class Story:
    """What a reader has of a run: where to go on after a lost connection, and whether it is over.

    With `until` it is over with that event, which is there already.
    """

    def __init__(self, run_id: RunId, after: int, until: int | None = None) -> None:
        self.seq = max(after, 0)
        self._run_id = run_id
        self._until = until
        self._decoder = Decoder()
        self.is_over = self._has_come_to_its_end

    def request(self, lasts_seconds: float = LASTS_SECONDS) -> Request:
        """What asks for all that comes after what is there, on a new connection."""
        self._decoder = Decoder()  # half a frame of the old one is nothing
        lasts = None if lasts_seconds >= LASTS_SECONDS else round(max(lasts_seconds, 0.001), 3)
        return Request(
            "GET",
            f"/v1/runs/{self._run_id}/events",
            {"lasts_seconds": lasts},
            last_event_id=self.seq or None,
        )

    def feed(self, received: bytes) -> Iterator[Event]:
        """The events that are complete with these bytes. What has no `id` is no event: it is text
        that a model writes, which the event `model.answered` has as a whole."""
        for frame in self._decoder.feed(received):
            if frame.id is None or self.is_over:
                continue
            event = self._read(frame.data)
            if event.seq <= self.seq:
                continue
            self.seq = event.seq
            self.is_over = event.is_terminal or self._has_come_to_its_end
            yield event

    @property
    def _has_come_to_its_end(self) -> bool:
        return self._until is not None and self.seq >= self._until

    def _read(self, data: str) -> Event:
        try:
            return _event(json.loads(data))
        except (KeyError, TypeError, ValueError) as error:
            raise UnexpectedAnswer(
                f"an event of run {self._run_id} after {self.seq} cannot be read "
                f"({type(error).__name__}: {error}): {data[:200]}"
            ) from error
