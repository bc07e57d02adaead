"""Which messages fit: whole exchanges, the newest first, and what must be there in any case."""

# features: 000-30, 002-04
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)

from celeriac.codec import dumps, loads
from celeriac.ids import RunId
from celeriac.messages import CallResult, opens_run, results_message, user_message
from celeriac.selection import (
    ContextTooLong,
    Place,
    apply_cuts,
    cuts_of,
    ranges_of,
    select,
    to_record,
)
from celeriac.token_count import message_tokens, text_tokens

EARLIER, NOW = RunId("earlier"), RunId("now")

sizes = st.integers(1, 300)


@st.composite
def runs(draw: st.DrawFn, name: str) -> list[ModelMessage]:
    """A run's messages: what opened it, exchanges of one to three calls, words and answers."""
    messages: list[ModelMessage] = [user_message("task " + "x" * draw(sizes))]
    for number in range(draw(st.integers(0, 6))):
        match draw(st.sampled_from(["calls", "words", "answer"])):
            case "calls":
                ids = [f"{name}-{number}-{index}" for index in range(draw(st.integers(1, 3)))]
                calls = [ToolCallPart("look", {"n": "y" * draw(sizes)}, each) for each in ids]
                messages.append(ModelResponse(calls))
                # Results come in one message or in several.
                results = [CallResult(each, "look", "z" * draw(sizes)) for each in ids]
                split = draw(st.integers(0, len(ids)))
                messages += [
                    results_message(part) for part in (results[:split], results[split:]) if part
                ]
            case "words":
                messages.append(user_message("word " + "w" * draw(sizes), opens_run=False))
            case "answer":
                messages.append(ModelResponse([TextPart("a" * draw(sizes))]))
    return messages


@st.composite
def conversations(draw: st.DrawFn) -> list[Place]:
    """Two runs of a thread; the second one is about to ask its model."""
    earlier = [*draw(runs("e")), ModelResponse([TextPart("done")])]
    return [*placed(EARLIER, earlier), *placed(NOW, draw(runs("n")))]


def placed(run_id: RunId, messages: list[ModelMessage]) -> list[Place]:
    return [
        Place(run_id, position, message, message_tokens(message))
        for position, message in enumerate(messages)
    ]


def calls_of(messages: list[ModelMessage]) -> list[str]:
    return [
        part.tool_call_id
        for message in messages
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]


def results_of(messages: list[ModelMessage]) -> list[str]:
    return [
        part.tool_call_id
        for message in messages
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]


@given(conversations(), st.integers(10, 2000))
def test_what_is_sent_is_whole_in_order_and_fits(places: list[Place], room: int) -> None:
    try:
        selection = select(places, room)
    except ContextTooLong:
        return

    sent = selection.messages
    assert sum(message_tokens(message) for message in sent) == selection.tokens <= room
    assert sorted(calls_of(sent)) == sorted(results_of(sent)), "a call went without its result"
    order = [places.index(place) for place in selection.places]
    assert order == sorted(set(order))
    assert selection.places[-1] == places[-1], "the newest message was left out"
    latest = max(number for number, place in enumerate(places) if place.is_prompt)
    assert places[latest] in selection.places, "what the user said last was left out"
    assert selection.places[0].is_prompt, "it does not begin with something a user said"


@given(conversations(), st.integers(10, 2000))
def test_what_is_left_out_would_not_have_fitted(places: list[Place], room: int) -> None:
    try:
        selection = select(places, room)
    except ContextTooLong:
        return
    if selection.is_everything:
        assert [place.message for place in places] == selection.messages
        return

    assert sum(place.tokens for place in places) > room
    if (opening := next(p for p in reversed(places) if opens_run(p.message))) not in (
        selection.places
    ):
        mandatory = select(places, room).tokens
        assert mandatory + opening.tokens > room


@given(conversations(), st.integers(10, 2000), st.integers(1, 12))
def test_what_was_read_only_from_the_end_is_selected_alike(
    places: list[Place], room: int, more: int
) -> None:
    """A worker that takes over reads back until it has more than fits, and the prompts that stay:
    it comes to the same as one that has everything in memory."""
    try:
        whole = select(places, room)
    except ContextTooLong:
        return
    first = len(places)
    while first and sum(place.tokens for place in places[first:]) <= room:
        first -= 1
    first = max(0, first - more + 1)
    tail = places[first:]
    if first:
        tail[0] = with_gap(tail[0])
        own = [place for place in places[:first] if place.run_id == NOW and place.is_prompt]
        kept = {id(each): each for each in own[:1] + own[-1:]}.values()
        tail = [*map(with_gap, kept), *tail]

    part = select(tail, room)

    assert ranges_of(to_record(part, room, NOW)) == ranges_of(to_record(whole, room, NOW))
    assert part.messages == whole.messages


def with_gap(place: Place) -> Place:
    return Place(place.run_id, place.position, place.message, place.tokens, follows=False)


@given(conversations(), st.integers(10, 2000))
def test_a_record_says_all_that_is_needed_to_send_the_same_again(
    places: list[Place], room: int
) -> None:
    try:
        selection = select(places, room)
    except ContextTooLong:
        return
    stored: Any = loads(dumps(to_record(selection, room, NOW)))

    named = {
        (run_id, position)
        for run_id, begin, end in ranges_of(stored)
        for position in range(begin, end)
    }
    again = [place for place in places if (place.run_id, place.position) in named]

    assert apply_cuts(again, cuts_of(stored)) == selection.messages
    dropped = {
        (each["run"], position)
        for each in stored["dropped"]
        for position in range(each["from"], each["to"] + 1)
    }
    assert named.isdisjoint(dropped)


def exchange(*results: str) -> list[ModelMessage]:
    ids = [f"c{index}" for index in range(len(results))]
    return [
        ModelResponse([ToolCallPart("look", {}, each) for each in ids]),
        results_message(
            [CallResult(each, "look", text) for each, text in zip(ids, results, strict=True)]
        ),
    ]


def test_the_longest_results_of_the_newest_exchange_are_cut_to_fit() -> None:
    places = placed(NOW, [user_message("go"), *exchange("short", "l" * 9000, "m" * 6000)])

    selection = select(places, 1000)

    request = selection.messages[-1]
    assert isinstance(request, ModelRequest)
    short, long, medium = (
        str(part.content) for part in request.parts if isinstance(part, ToolReturnPart)
    )
    assert short == "short"
    assert len(long) == len(medium) < 2000
    assert "of 9000 characters are shown]" in long
    assert 990 <= selection.tokens <= 1000
    assert [cut.part for cut in selection.cuts] == [1, 2]
    assert isinstance(places[-1].message.parts[1], ToolReturnPart)
    assert places[-1].message.parts[1].content == "l" * 9000, "the log's own message was changed"


def test_a_result_that_is_no_text_is_cut_as_json() -> None:
    result: Any = {"rows": [{"n": number} for number in range(2000)]}
    message = results_message([CallResult("c0", "look", result)])
    places = placed(NOW, [user_message("go"), ModelResponse([ToolCallPart("look", {}, "c0")])])
    places += [Place(NOW, 2, message, message_tokens(message))]

    selection = select(places, 500)

    (part,) = selection.messages[-1].parts
    assert isinstance(part, ToolReturnPart)
    assert str(part.content).startswith('{"rows":[{"n":0},')
    assert selection.tokens <= 500


def test_what_the_user_said_is_never_cut() -> None:
    places = placed(NOW, [user_message("x" * 9000)])

    with pytest.raises(ContextTooLong, match="about 3004 tokens, and 1000 are left"):
        select(places, 1000)


def test_an_unfinished_turn_goes_with_its_rest() -> None:
    places = placed(
        NOW,
        [
            user_message("go"),
            ModelResponse([TextPart("a" * 300)], state="suspended"),
            ModelResponse([TextPart("b" * 300)]),
            user_message("on", opens_run=False),
        ],
    )

    selection = select(places, 150)

    assert [place.position for place in selection.places] == [0, 3]


def test_a_token_is_estimated_at_three_bytes() -> None:
    assert [text_tokens(text) for text in ("", "a", "abc", "abcd", "äöü", "日本")] == [
        0, 1, 1, 2, 2, 2,
    ]  # fmt: skip
