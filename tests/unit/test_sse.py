"""The codec of server-sent events."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celeriac.sse import Decoder, Frame, encode, to_data

KEEP_ALIVE = b":\n\n"  # a comment, as servers send it while nothing happens

CHARACTERS = st.characters() | st.sampled_from("\n\r\0\u2028\ufeff: 🌱é")
NAMES = st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8"), min_size=1)
TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from("\n\0🌱: "))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(CHARACTERS),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(CHARACTERS), inner),
)


def decoded(stream: bytes, *, piece: int = 1 << 20) -> list[Frame]:
    decoder = Decoder()
    pieces = [stream[start : start + piece] for start in range(0, len(stream), piece)]
    return [frame for part in pieces for frame in decoder.feed(part)]


# features: 003-06
@given(VALUES)
@example("\n")
@example("\r\n\r\n")
@example({"\0": "\ud800", "emoji": "👩‍🌾🌱"})
def test_a_json_value_comes_back_as_it_was_sent(value: object) -> None:
    (frame,) = decoded(encode(Frame(to_data(value))))  # type: ignore[arg-type]  # it is JSON

    assert json.loads(frame.data) == value


# features: 003-06
@given(
    st.lists(st.builds(Frame, TEXTS, NAMES, st.none() | NAMES), max_size=4),
    st.integers(min_value=1, max_value=7),
)
def test_frames_come_back_from_pieces_of_any_size(frames: list[Frame], piece: int) -> None:
    stream = KEEP_ALIVE.join(map(encode, frames))
    expected = [
        Frame(f.data.replace("\r\n", "\n").replace("\r", "\n"), f.event, f.id) for f in frames
    ]

    assert decoded(stream, piece=piece) == expected


# features: 003-06
def test_a_megabyte_comes_back_from_small_pieces() -> None:
    value = "line\r\n\0🌱" * (1 << 17)

    (frame,) = decoded(encode(Frame(to_data(value), id="7")), piece=4096)

    assert len(frame.data) >= 1 << 20
    assert json.loads(frame.data) == value


@pytest.mark.parametrize("line_break", ["\n", "\r", "\r\n"])
def test_a_stream_of_other_senders_is_read_as_the_standard_says(line_break: str) -> None:
    lines = [
        "\ufeff: hello", "", "data", "", "data:two", "data:  lines", "unknown: x", "id: 3", "",
        "id: 4", "event: no-data", "", "id", "data: reset", "", "data: cut off",
    ]  # fmt: skip
    decoder = Decoder()

    for byte in line_break.join(lines).encode():
        list(decoder.feed(bytes([byte])))
    frames = decoded((line_break.join(lines)).encode())

    assert frames == [Frame(""), Frame("two\n lines", id="3"), Frame("reset", id="")]
    assert decoder.last_id == ""


def test_the_position_is_that_of_the_last_whole_frame() -> None:
    decoder = Decoder()

    list(decoder.feed(b"id: 5\ndata: x\n\ndata: y\n\nid: 6\ndata: z\n"))

    assert decoder.last_id == "5"


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\0b"])
def test_a_name_that_would_break_the_stream_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="names no event"):
        encode(Frame("x", event=name))
    with pytest.raises(ValueError, match="names no event"):
        encode(Frame("x", id=name))
