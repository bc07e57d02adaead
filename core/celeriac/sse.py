r"""Server-sent events: frames of `id`, `event` and `data` as bytes, and back.

https://html.spec.whatwg.org/multipage/server-sent-events.html. A frame's data is text, in which the
format keeps line breaks but not their kind: `\r\n` and `\r` come back as `\n`. JSON is safe, as it
escapes them; `to_data` makes such text of any value, lone surrogates included, which UTF-8 has not.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from celeriac.codec import JsonValue

_LINE_BREAK = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Frame:
    """One event of a stream. Without an `id` it leaves the reader's position as it is."""

    data: str
    event: str = "message"
    id: str | None = None


def encode(frame: Frame) -> bytes:
    """The frame in UTF-8. Raises `ValueError` for an id or event that the format cannot carry."""
    for name in (frame.event, frame.id or ""):
        if _LINE_BREAK.search(name) or "\0" in name:
            raise ValueError(
                f"{name!r} holds a line break or NUL, so it names no event and no place"
            )
    lines = [] if frame.id is None else [f"id: {frame.id}"]
    if frame.event != "message":
        lines.append(f"event: {frame.event}")
    lines += [f"data: {line}" for line in _LINE_BREAK.split(frame.data)]
    return ("\n".join(lines) + "\n\n").encode()


def to_data(value: JsonValue) -> str:
    """`value` as JSON text in one line, in which every character is one that UTF-8 has."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace").decode()


class Decoder:
    """Reads frames from bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self.last_id = ""
        """The position to go on from after a lost connection: of the last whole frame that had
        one."""
        self._bytes = bytearray()
        self._searched = 0  # bytes that hold no end of a line
        self._is_first = True
        self._data: list[str] = []
        self._event = ""
        self._id: str | None = None

    def feed(self, received: bytes) -> Iterator[Frame]:
        """The frames that end in these bytes. Comments are left out; a frame without data too."""
        self._bytes += received
        while (line := self._line()) is not None:
            if line:
                self._field(line)
                continue
            if self._id is not None:
                self.last_id = self._id
            if self._data:
                yield Frame("\n".join(self._data), self._event or "message", self._id)
            self._forget()

    def _line(self) -> str | None:
        found = _END_OF_LINE.search(self._bytes, self._searched)
        if found is None or (found[0] == b"\r" and found.end() == len(self._bytes)):
            # A \r at the very end may be half of a \r\n.
            self._searched = len(self._bytes) if found is None else found.start()
            return None
        line = self._bytes[: found.start()].decode("utf-8", "replace")
        del self._bytes[: found.end()]
        self._searched = 0
        if self._is_first:
            self._is_first = False
            line = line.removeprefix("\ufeff")
        return line

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self._id = value

    def _forget(self) -> None:
        self._data, self._event, self._id = [], "", None


_END_OF_LINE = re.compile(b"\r\n|\r|\n")
