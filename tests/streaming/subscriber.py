"""A subscriber as a client would write one: frames in a thread, and what a person sees of them."""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2

from celeriac.sse import Decoder, Frame
from tests.waiting import eventually

TIMEOUT_SECONDS = 60.0


class Subscriber:
    """Reads a run's stream until it ends or is closed, without coming back by itself."""

    def __init__(
        self,
        url: str,
        token: str,
        run_id: str,
        *,
        after: int | None = None,
        last_event_id: str | None = None,
    ) -> None:
        self.frames: list[Frame] = []
        self.comments = 0
        self.status: int | None = None
        self.trouble: Exception | None = None
        self._is_closed = False
        self._headers = {"Authorization": f"Bearer {token}"}
        if last_event_id is not None:
            self._headers["Last-Event-ID"] = last_event_id
        query = "" if after is None else f"?after={after}"
        self._url = f"{url}/v1/runs/{run_id}/events{query}"
        self._client = httpx2.Client(timeout=TIMEOUT_SECONDS)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        self._client.close()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(frame.data) for frame in self.frames if frame.id is not None]

    @property
    def seqs(self) -> list[int]:
        return [int(frame.id) for frame in self.frames if frame.id is not None]

    @property
    def names(self) -> list[str]:
        return [frame.event for frame in self.frames]

    def told(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(frame.data) for frame in self.frames if frame.event == name]

    def wait(self, until: Callable[["Subscriber"], object], what: str = "the frames") -> Self:
        eventually(lambda: self, until=until, deadline_seconds=TIMEOUT_SECONDS, what=what)
        return self

    def wait_for_end(self) -> Self:
        self.wait(lambda each: each.has_ended, "the end of the stream")
        assert self.trouble is None, self.trouble
        return self

    def __repr__(self) -> str:
        return f"{self.status} {self.trouble} {[(f.event, f.id, f.data[:80]) for f in self.frames]}"

    def _read(self) -> None:
        decoder = Decoder()
        try:
            with self._client.stream("GET", self._url, headers=self._headers) as response:
                self.status = response.status_code
                for received in response.iter_raw():
                    self.comments += received.count(b"\n: ") + received.startswith(b": ")
                    self.frames += decoder.feed(received)
        except Exception as error:  # noqa: BLE001 - the test looks at it, unless it has caused it
            if not self._is_closed:
                self.trouble = error


class Screen:
    """What a person sees: the pieces of the text in progress, and what is final.

    The rule of docs/streaming.md: a piece counts if it is the next one of its attempt; the first of
    a later attempt begins anew; `superseded` and `model.answered` end an attempt.
    """

    def __init__(self) -> None:
        self.final: list[str] = []
        self.partial = ""
        self.twice: list[Mapping[str, Any]] = []
        self._attempt: tuple[int, int] | None = None
        self._pieces = 0

    def show(self, frames: list[Frame]) -> Self:
        for frame in frames:
            told = json.loads(frame.data)
            if frame.event == "text.delta":
                self._piece(told)
            elif frame.event == "superseded":
                if (told["epoch"], told["step"]) == self._attempt:
                    self._drop()
            elif frame.event == "model.answered":
                self.final.append(told["data"].get("text", ""))
                self._drop()
        return self

    def _piece(self, told: Mapping[str, Any]) -> None:
        attempt = told["epoch"], told["step"]
        if told["index"] == 0 and attempt != self._attempt:
            self._drop()
            self._attempt = attempt
        if attempt != self._attempt or told["index"] != self._pieces:
            self.twice.append(told)
            return
        self.partial += told["text"]
        self._pieces += 1

    def _drop(self) -> None:
        self._attempt, self.partial, self._pieces = None, "", 0


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port
