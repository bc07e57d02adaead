"""What a worker's models write reaches Redis in pieces, or is dropped; nobody waits for it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from celeriac.ids import RunId
from celeriac_tasks.text_stream import (
    LASTS_SECONDS,
    Attempt,
    Piece,
    TextStreams,
    stream_key,
    text_channel,
)
from tests.waiting import eventually

RUN = RunId("told-1")
NOBODY_LISTENS = "redis://127.0.0.1:1/0"


@pytest.fixture
def client(broker_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker_url) as client:
        yield client


@pytest.fixture
def streams(broker_url: str) -> Iterator[TextStreams]:
    streams = TextStreams(broker_url)
    yield streams
    streams.close()


def pieces(client: redis.Redis) -> list[Piece]:
    entries: Any = client.xrange(stream_key(RUN))
    return [Piece.from_entry(entry) for _, entry in entries]


def text(client: redis.Redis) -> str:
    return "".join(piece.text for piece in pieces(client))


def test_pieces_are_numbered_gathered_and_last_for_a_while(
    client: redis.Redis, streams: TextStreams
) -> None:
    with streams.attempt(RUN, 3, 4) as write:
        for number in range(500):
            write(f"word{number} ")
        write("\ud800 \0🌱 ")
        eventually(lambda: text(client), until=lambda told: told.endswith("? \0🌱 "))

        found = pieces(client)
        assert [piece.index for piece in found] == list(range(len(found)))
        assert {piece.attempt for piece in found} == {Attempt(3, 4)}
        assert len(found) < 500
        seconds: Any = client.ttl(stream_key(RUN))
        assert 0 < seconds <= LASTS_SECONDS


def test_whoever_listens_is_told(client: redis.Redis, streams: TextStreams) -> None:
    listener: Any = client.pubsub()  # type: ignore[no-untyped-call]  # redis-py's
    with listener:
        listener.subscribe(text_channel(RUN))
        assert listener.get_message(timeout=30) is not None
        with streams.attempt(RUN, 1, 0) as write:
            write("hello ")
            message = listener.get_message(timeout=30)
            assert message["data"] == b""


def test_without_redis_the_text_is_dropped_and_nobody_waits() -> None:
    streams = TextStreams(NOBODY_LISTENS)
    with streams.attempt(RUN, 1, 0) as write:
        for _ in range(1000):
            write("word ")
    streams.close()

    assert "celeriac-text" not in {thread.name for thread in threading.enumerate()}


def test_after_a_trouble_an_attempt_says_no_more_and_the_next_one_is_whole(
    client: redis.Redis, streams: TextStreams
) -> None:
    client.set(stream_key(RUN), "no stream")  # so that Redis refuses
    with streams.attempt(RUN, 1, 0) as write, streams.attempt(RunId("other"), 1, 0) as other:
        write("one ")
        other("two ")
        eventually(lambda: client.exists(stream_key(RunId("other"))))
        client.delete(stream_key(RUN))
        with streams.attempt(RUN, 2, 0) as again:
            write("lost ")
            again("whole ")
            eventually(lambda: text(client), until=lambda told: told == "whole ")

    assert [piece.attempt for piece in pieces(client)] == [Attempt(2, 0)]
