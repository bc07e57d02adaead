"""The text of a model while it is being written, for whoever watches the run.

What is said here lasts for minutes and may get lost: the whole answer comes with the step's commit,
and that is the one that counts. Pieces go to a Redis stream per run, marked with the claim and the
step that they belong to, so that readers can tell them from those of a worker that lost its claim.
No step waits for any of it. Where Redis does not take a piece, the attempt shows nothing more.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import redis

from celeriac.ids import RunId
from celeriac.secrets import redact_so_far

logger = logging.getLogger(__name__)

GATHER_SECONDS = 0.05
"""What is written within this time goes out together: 20 commands per second and process at most,
however many tokens and runs there are."""
TROUBLE_SECONDS = 1.0
LONGEST_STREAM = 4096  # pieces, about; those of some minutes
LASTS_SECONDS = 600  # after the last piece
_TIMEOUTS: dict[str, Any] = {"socket_timeout": 5, "socket_connect_timeout": 5}


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One asking of the model. Of two attempts of a run, the later one is the greater."""

    epoch: int  # of the claim
    step: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of an attempt: piece 0, 1, 2 … of it."""

    attempt: Attempt
    index: int
    text: str

    def to_entry(self) -> dict[str, str | int]:
        return {
            "epoch": self.attempt.epoch,
            "step": self.attempt.step,
            "index": self.index,
            "text": self.text,
        }

    @classmethod
    def from_entry(cls, entry: Mapping[bytes, bytes]) -> "Piece":
        return cls(
            Attempt(int(entry[b"epoch"]), int(entry[b"step"])),
            int(entry[b"index"]),
            entry[b"text"].decode(),
        )


def stream_key(run_id: RunId) -> str:
    """The Redis stream that holds the run's pieces."""
    return f"celeriac:stream:{run_id}"


def text_channel(run_id: RunId) -> str:
    """Where it is told that there are new ones."""
    return f"celeriac:text:{run_id}"


class TextStreams:
    """Sends what this process's models write, in a thread of its own, from the first piece on."""

    def __init__(self, broker_url: str) -> None:
        self._redis = redis.Redis.from_url(broker_url, **_TIMEOUTS)
        self._changed: SimpleQueue[_Writing | None] = SimpleQueue()  # each attempt once at most
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def attempt(self, run_id: RunId, epoch: int, step: int) -> Iterator[Callable[[str], None]]:
        """What takes the text of this attempt, from any thread. It never waits and never fails."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._live, name="celeriac-text", daemon=True
                )
                self._thread.start()
        writing = _Writing(run_id, Attempt(epoch, step), self._changed.put)
        try:
            yield writing.write
        finally:
            writing.end()

    def close(self) -> None:
        """End the thread. What was not sent by now is not sent."""
        if self._thread is not None:
            self._changed.put(None)
            self._thread.join(TROUBLE_SECONDS)
        self._redis.close()

    def _live(self) -> None:
        while True:
            changed = [self._changed.get()]
            time.sleep(GATHER_SECONDS)
            try:
                while True:
                    changed.append(self._changed.get_nowait())
            except Empty:
                pass
            writings = [writing for writing in changed if writing is not None]
            try:
                self._send(writings)
            except redis.RedisError as error:
                logger.info("models' text is not shown while it is written: %s", error)
                for writing in writings:
                    writing.end()
                time.sleep(TROUBLE_SECONDS)
            if len(writings) < len(changed):
                return

    def _send(self, writings: "list[_Writing]") -> None:
        pieces = [(writing.run_id, writing.take()) for writing in writings]
        with self._redis.pipeline(transaction=False) as pipeline:
            for run_id, piece in pieces:
                if piece is not None:
                    key = stream_key(run_id)
                    entry: Any = (
                        piece.to_entry()
                    )  # redis-py's own type does not know of dicts of str
                    pipeline.xadd(key, entry, maxlen=LONGEST_STREAM, approximate=True)
                    pipeline.expire(key, LASTS_SECONDS)
                    pipeline.publish(text_channel(run_id), "")
            if len(pipeline):
                pipeline.execute()


class _Writing:
    """The text of one attempt: what there is, and how much of it was sent."""

    def __init__(
        self, run_id: RunId, attempt: Attempt, changed: "Callable[[_Writing], None]"
    ) -> None:
        self.run_id = run_id
        self._attempt = attempt
        self._changed = changed
        self._lock = threading.Lock()
        self._text = ""
        self._sent = ""
        self._pieces = 0
        self._is_noted = False
        self._is_over = False

    def write(self, text: str) -> None:
        with self._lock:
            if self._is_over:
                return
            self._text += text
            if self._is_noted:
                return
            self._is_noted = True
        self._changed(self)

    def take(self) -> Piece | None:
        """The next piece, if there is anything that may be shown by now. For one thread."""
        with self._lock:
            self._is_noted = False
            if self._is_over:
                return None
            text = self._text
        shown = redact_so_far(text).encode(errors="replace").decode()
        if not shown.startswith(self._sent):
            self.end()  # what came made a secret of what was shown; say no more
            return None
        new, self._sent = shown[len(self._sent) :], shown
        if not new:
            return None
        self._pieces += 1
        return Piece(self._attempt, self._pieces - 1, new)

    def end(self) -> None:
        with self._lock:
            self._is_over = True
            self._text = ""
