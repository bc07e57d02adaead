"""What a model writes, read while it writes: never the last word, and nothing twice."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from celeriac.secrets import REDACTED
from celeriac.sse import Frame
from tests.provider_server import ProviderServer, Reply
from tests.streaming.agents import WORDS
from tests.streaming.conftest import Service
from tests.streaming.subscriber import Screen
from tests.waiting import eventually

STORY = ["Once ", "upon ", "a ", "time ", "there ", "was ", "a ", "worker."]
TOLD = 4  # words before the provider stalls
LEASE_SECONDS = 1


def shows(text: str) -> Any:
    """Whether the subscriber's screen shows this as text in progress."""
    return lambda subscriber: Screen().show(subscriber.frames).partial == text


def so_far(words: Sequence[str]) -> str:
    """The last word is held back: it might become a secret."""
    return "".join(words).rstrip() + " " if words else ""


def attempts(frames: Sequence[Frame], name: str) -> list[tuple[int, int]]:
    """Epoch and step of the frames of this name, each once, in order."""
    told = [json.loads(frame.data) for frame in frames if frame.event == name]
    return list(dict.fromkeys((each["epoch"], each["step"]) for each in told))


@pytest.fixture
def url(service: Service, provider: ProviderServer) -> str:  # noqa: ARG001  workers ask it
    """An API process, with a scheduler; workers are the test's own."""
    service.stack.start_scheduler(lease_seconds=LEASE_SECONDS)
    return service.start_api()[1]


def test_the_pieces_add_up_to_the_text_of_the_answer(service: Service, url: str) -> None:
    service.start_worker()
    run_id = service.stack.start("reciter")

    subscriber = service.subscribe(url, run_id).wait_for_end()

    screen = Screen().show(subscriber.frames)
    assert screen.final == ["First I count. ", "".join(WORDS)]
    assert screen.twice == []
    pieces = [told["text"] for told in subscriber.told("text.delta") if told["step"] == 2]
    assert len(pieces) > 1
    assert "".join(WORDS).startswith("".join(pieces))
    assert subscriber.seqs == service.seqs(run_id)
    assert "superseded" not in subscriber.names


def test_an_agent_that_does_not_stream_shows_nothing_in_between(service: Service, url: str) -> None:
    service.start_worker()
    run_id = service.stack.start("quiet")

    subscriber = service.subscribe(url, run_id).wait_for_end()

    assert subscriber.told("text.delta") == []
    assert all("text" not in told["data"] for told in subscriber.told("model.answered"))
    with redis.Redis.from_url(service.stack.broker.url) as client:
        assert client.keys("celeriac:stream:*") == []


# features: 004-19
@pytest.mark.crash
def test_a_worker_killed_in_mid_stream_is_superseded_and_nothing_of_it_is_stored(
    service: Service, provider: ProviderServer, url: str
) -> None:
    provider.will_reply(Reply.stream(STORY, stalls_after=[TOLD]), Reply.stream(STORY))
    worker = service.start_worker(lease_seconds=LEASE_SECONDS)
    run_id = service.stack.start("storyteller")
    subscriber = service.subscribe(url, run_id)
    subscriber.wait(shows(so_far(STORY[:TOLD])), "half of the story")

    worker.kill_group()
    subscriber.wait(lambda each: "superseded" in each.names, "the end of that attempt")
    messages = service.stack.query("SELECT role FROM celeriac.messages WHERE run_id = %s", run_id)
    service.start_worker(lease_seconds=LEASE_SECONDS)
    subscriber.wait_for_end()

    assert messages == [("user",)]
    assert attempts(subscriber.frames, "superseded") == [(1, 0)]
    assert attempts(subscriber.frames, "text.delta")[0] == (1, 0)
    assert Screen().show(subscriber.frames).final == ["".join(STORY)]
    assert subscriber.seqs == service.seqs(run_id)
    assert service.stack.run(run_id).result == "".join(STORY)
    assert service.stack.violations() == []


# features: 004-19
@pytest.mark.crash
def test_a_streamed_answer_is_stored_with_its_calls_before_the_first_is_made(
    service: Service,
) -> None:
    service.stack.start_scheduler()
    worker = service.start_worker(test_points="act.before_tool@1=kill")
    run_id = service.stack.start("reciter")
    worker.wait()

    messages = service.stack.query(
        "SELECT role, body FROM celeriac.messages WHERE run_id = %s ORDER BY position", run_id
    )
    assert [role for role, _ in messages] == ["user", "assistant"]
    said, called = messages[-1][1]["parts"]
    assert (said["content"], called["tool_name"]) == ("First I count. ", "tally")
    assert service.stack.query(
        "SELECT step, state -> 'pending' FROM celeriac.checkpoints WHERE run_id = %s", run_id
    ) == [(0, ["0.0"])]
    assert service.stack.tally(run_id) == []

    service.start_worker()
    run = service.stack.completed(run_id)
    assert service.stack.tally(run_id) == ["one"]
    assert [call.step for call in run.steps] == [0, 1, 2]
    assert service.stack.violations() == []


@pytest.mark.crash
def test_what_a_zombie_goes_on_to_write_is_shown_to_nobody(
    service: Service, provider: ProviderServer, url: str
) -> None:
    other = ["Another ", "story ", "by ", "another ", "worker."]
    provider.will_reply(
        Reply.stream(STORY, stalls_after=[TOLD, TOLD + 2]),
        Reply.stream(other, stalls_after=[len(other) - 1]),
    )
    zombie = service.start_worker(lease_seconds=LEASE_SECONDS)
    run_id = service.stack.start("storyteller")
    subscriber = service.subscribe(url, run_id)
    subscriber.wait(shows(so_far(STORY[:TOLD])), "half of the story")
    zombie.freeze()
    service.start_worker(lease_seconds=LEASE_SECONDS)
    subscriber.wait(shows(so_far(other[:-1])), "the other story")

    provider.go_on(0)
    zombie.thaw()
    eventually(
        lambda: _entries(service, run_id),
        until=lambda entries: [e for e, text in entries if e == 1 and "there" in text],
        what="the zombie's next words in Redis",
    )
    late = service.subscribe(url, run_id).wait(shows(so_far(other[:-1])), "the other story")
    provider.go_on()
    for each in (subscriber, late):
        each.wait_for_end()

    assert attempts(subscriber.frames, "text.delta") == [(1, 0), (2, 0)]
    assert attempts(late.frames, "text.delta") == [(2, 0)]
    assert attempts(subscriber.frames, "superseded") == [(1, 0)]
    for each in (subscriber, late):
        assert Screen().show(each.frames).final == ["".join(other)]
    assert service.stack.violations() == []


def _entries(service: Service, run_id: str) -> list[tuple[int, str]]:
    with redis.Redis.from_url(service.stack.broker.url) as client:
        entries: Any = client.xrange(f"celeriac:stream:{run_id}")
        return [(int(entry[b"epoch"]), entry[b"text"].decode()) for _, entry in entries]


def test_who_comes_back_at_any_position_gets_the_text_so_far_once(
    service: Service, provider: ProviderServer, url: str
) -> None:
    provider.will_reply(Reply.stream(STORY, stalls_after=[TOLD]))
    service.start_worker()
    run_id = service.stack.start("storyteller")
    first = service.subscribe(url, run_id).wait(shows(so_far(STORY[:TOLD])), "half of the story")
    _, other_url = service.start_api()

    positions = range(len(first.seqs) + 1)
    back = [
        service.subscribe(address, run_id, last_event_id=str(seq))
        for seq in positions
        for address in (url, other_url)
    ]
    for each in back:
        each.wait(shows(so_far(STORY[:TOLD])), "the text so far")
    provider.go_on()
    for each in (first, *back):
        each.wait_for_end()

    for each in back:
        screen = Screen().show(each.frames)
        assert screen.final == ["".join(STORY)]
        assert screen.twice == []
    # The same person, with what was there before: what comes again is told from what is new.
    for each in back:
        kept = Screen().show(first.frames[: first.names.index("text.delta") + 1])
        kept.show(each.frames)
        assert kept.final == ["".join(STORY)]
        assert all(again["index"] == 0 for again in kept.twice)


def test_a_flushed_redis_costs_text_in_progress_and_nothing_else(
    service: Service, provider: ProviderServer, url: str
) -> None:
    provider.will_reply(Reply.stream(STORY, stalls_after=[TOLD]))
    service.start_worker()
    run_id = service.stack.start("storyteller")
    first = service.subscribe(url, run_id).wait(shows(so_far(STORY[:TOLD])), "half of the story")
    with redis.Redis.from_url(service.stack.broker.url) as client:
        client.flushdb()
    _, other_url = service.start_api()
    late = service.subscribe(other_url, run_id).wait(lambda each: each.seqs, "the events so far")

    provider.go_on()
    for each in (first, late):
        each.wait_for_end()

    for each in (first, late):
        assert Screen().show(each.frames).final == ["".join(STORY)]
        assert each.seqs == service.seqs(run_id)
    # The other process has not seen the begin, and half a text is worse than none.
    assert late.told("text.delta") == []


@pytest.mark.parametrize("ending", ["cut", "closed"])
def test_half_an_answer_is_superseded_and_never_stored(
    service: Service, provider: ProviderServer, url: str, ending: str
) -> None:
    half = Reply.stream(STORY[:TOLD], stalls_after=[TOLD - 1], ending=ending)
    provider.will_reply(half, Reply.stream(STORY))
    service.start_worker()
    run_id = service.stack.start("storyteller")
    subscriber = service.subscribe(url, run_id)
    subscriber.wait(shows(so_far(STORY[: TOLD - 1])), "a part of the story")

    provider.go_on()
    subscriber.wait_for_end()

    assert attempts(subscriber.frames, "superseded") == [(1, 0)]
    names = subscriber.names
    assert names.index("superseded") < names.index("model.failed") < names.index("model.answered")
    assert Screen().show(subscriber.frames).final == ["".join(STORY)]
    assert service.stack.run(run_id).result == "".join(STORY)


def test_a_cancelled_answer_is_superseded_before_the_last_event(
    service: Service, provider: ProviderServer, url: str
) -> None:
    provider.will_reply(Reply.stream(STORY, stalls_after=[TOLD]))
    service.start_worker()
    run_id = service.stack.start("storyteller")
    subscriber = service.subscribe(url, run_id)
    subscriber.wait(shows(so_far(STORY[:TOLD])), "half of the story")

    service.stack.client.cancel(run_id)
    subscriber.wait_for_end()

    assert subscriber.names[-1] == "run.cancelled"
    assert attempts(subscriber.frames, "superseded") == [(1, 0)]
    assert Screen().show(subscriber.frames).partial == ""


def test_a_secret_is_hidden_in_the_pieces_too(
    service: Service, provider: ProviderServer, url: str
) -> None:
    secret = "sk-0123456789abcdefghij"
    words = ["The ", "key ", "is ", secret[:5], secret[5:12], secret[12:], " and ", "so ", "on."]
    provider.will_reply(Reply.stream(words, stalls_after=[len(words) - 1]))
    service.start_worker()
    run_id = service.stack.start("storyteller")

    subscriber = service.subscribe(url, run_id)
    subscriber.wait(shows(f"The key is {REDACTED} and so "), "all but the last word")
    provider.go_on()
    subscriber.wait_for_end()

    assert secret[:6] not in "".join(frame.data for frame in subscriber.frames)
    assert all(secret[:6] not in text for _, text in _entries(service, run_id))
