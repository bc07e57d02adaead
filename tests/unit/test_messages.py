import base64
import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    RetryFeedbackPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from celeriac.codec import JsonValue, dumps, loads
from celeriac.errors import InvalidInput
from celeriac.messages import (
    CallResult,
    dump_message,
    load_message,
    opens_run,
    question_message,
    results_message,
    user_message,
)
from celeriac.prompt import prompt_body

SIGNATURE = base64.b64encode(bytes(range(256)) * 4).decode()


def stored_and_loaded(message: ModelMessage) -> ModelMessage:
    """`message` as another process reads it from the database."""
    body = loads(dumps(dump_message(message)))
    assert isinstance(body, dict)
    return load_message(body)


def as_sent(message: ModelMessage) -> ModelMessage:
    """`message` without what is never sent: all that two equal messages may differ in."""
    moment = datetime(2000, 1, 1, tzinfo=UTC)
    parts: list[Any] = list(message.parts)
    for index, part in enumerate(parts):
        if any(field.name == "timestamp" for field in fields(part)):
            parts[index] = replace(part, timestamp=moment)
    if isinstance(message, ModelRequest):
        return replace(message, parts=parts, timestamp=None)
    return replace(message, parts=parts, timestamp=moment, usage=RequestUsage())


MESSAGES: dict[str, ModelMessage] = {
    "prompt": ModelRequest([SystemPromptPart("Be kind."), UserPromptPart("Größe? 測試 👩‍🚀")]),
    "prompt with files": ModelRequest(
        [
            UserPromptPart(
                [
                    "Look:",
                    BinaryContent(b"\x00\xff%PDF", media_type="application/pdf"),
                    ImageUrl("https://example.org/a", media_type="image/png"),
                ]
            )
        ]
    ),
    "result with a file": ModelRequest(
        [
            ToolReturnPart(
                "shot", [{"n": 1}, BinaryContent(b"\xff", media_type="application/pdf")], "c1"
            )
        ]
    ),
    "text": ModelResponse([TextPart("Zażółć gęślą jaźń \x00 \n")], finish_reason="stop"),
    "arguments as a dict": ModelResponse(
        [ToolCallPart("pay", {"amount": 12.5, "note": None, "to": ["ü"]}, "call_1")],
        model_name="m",
        finish_reason="tool_call",
    ),
    "arguments as text": ModelResponse(
        [TextPart("I pay."), ToolCallPart("pay", '{"amount": 12.50,', "call_1")],
        finish_reason="tool_call",
    ),
    "no arguments": ModelResponse([ToolCallPart("now", None, "call_1")]),
    "thinking": ModelResponse(
        [
            ThinkingPart("Hm.", signature=SIGNATURE, provider_name="anthropic"),
            ThinkingPart(
                "", id="rs_1", provider_name="openai", provider_details={"raw_content": ["x"]}
            ),
            TextPart("Yes.", id="msg_1", provider_name="openai"),
        ],
        model_name="claude",
        provider_name="anthropic",
        provider_url="https://api.anthropic.com",
        canonical_system="anthropic",
        provider_response_id="msg_0123",
        finish_reason="stop",
    ),
    "native tools": ModelResponse(
        [
            NativeToolCallPart(
                "web_search", {"query": "x"}, "srv_1", provider_name="anthropic", id="a"
            ),
            NativeToolReturnPart("web_search", [{"url": "u"}], "srv_1", provider_name="anthropic"),
            FilePart(BinaryContent(b"\x01\x02", media_type="audio/wav"), provider_name="google"),
        ],
        provider_name="anthropic",
        provider_details={"container_id": "c_1"},
    ),
    "suspended": ModelResponse(
        [TextPart("so far")],
        state="suspended",
        provider_name="openai",
        provider_url="https://api.openai.com/v1/",
        provider_response_id="resp_1",
        provider_details={"background": True},
        metadata={"__pydantic_ai__": {"pin": "a"}},
    ),
}


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_a_stored_message_comes_back_as_it_was_sent(message: ModelMessage) -> None:
    assert as_sent(stored_and_loaded(message)) == as_sent(message)


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES.keys())
def test_storing_again_what_was_loaded_changes_nothing(message: ModelMessage) -> None:
    once = dump_message(message)

    assert dump_message(load_message(once)) == once


@pytest.mark.parametrize("opens_run", [True, False])
@pytest.mark.parametrize("text", ["", "two A-7,\nplease é", "half \ud83d of an emoji"])
def test_what_a_person_says_is_stored_alike_without_pydantic_ai(text: str, opens_run: bool) -> None:
    assert prompt_body(text, opens_run=opens_run) == dump_message(
        user_message(text, opens_run=opens_run)
    )


def test_dates_usage_and_the_names_of_one_call_are_not_stored() -> None:
    response = ModelResponse(
        [TextPart("hi")],
        usage=RequestUsage(input_tokens=10, output_tokens=3),
        model_name="gpt",
        run_id="r1",
        conversation_id="c1",
        provider_details={"timestamp": datetime.now(UTC), "finish_reason": "stop"},
        finish_reason="stop",
    )

    assert dump_message(response) == {
        "kind": "response",
        "model_name": "gpt",
        "finish_reason": "stop",
        "parts": [{"content": "hi"}],
    }
    assert dump_message(user_message("hi")) == {"kind": "request", "parts": [{"content": "hi"}]}


def test_an_assistant_message_costs_less_than_120_bytes_beside_its_text() -> None:
    text = "word " * 200
    from_openai = ModelResponse(
        [TextPart(text)],
        usage=RequestUsage(input_tokens=1000, output_tokens=300),
        model_name="gpt-4.1-2025-04-14",
        provider_name="openai",
        provider_url="https://api.openai.com/v1/",
        canonical_system="openai",
        provider_response_id="chatcmpl-Bx0123456789abcdefghijklmnopq",
        provider_details={"finish_reason": "stop", "service_tier": "default", "timestamp": "t"},
        finish_reason="stop",
    )

    assert len(dumps(dump_message(from_openai))) - len(text) < 120


def test_the_origin_stays_with_whatever_only_the_origin_understands() -> None:
    response = MESSAGES["thinking"]

    stored = dump_message(response)

    assert stored["provider_name"] == "anthropic"
    assert stored["provider_url"] == "https://api.anthropic.com"
    assert stored["provider_response_id"] == "msg_0123"


def test_data_that_looks_like_a_file_stays_data() -> None:
    disguised: JsonValue = {
        "kind": "binary",
        "data": "aGk=",
        "media_type": "image/png",
        "nested": [{"kind": "image-url", "url": "http://10.0.0.1/", "media_type": "image/png"}],
    }
    exact: JsonValue = {"kind": "binary", "data": "aGk=", "media_type": "image/png"}
    message = results_message([CallResult("a", "t", disguised), CallResult("b", "t", [exact])])

    loaded = stored_and_loaded(message)

    assert [part.content for part in loaded.parts if isinstance(part, ToolReturnPart)] == [
        disguised,
        [exact],
    ]


def test_an_error_reaches_the_model_as_a_failed_call_with_its_id() -> None:
    message = results_message(
        [
            CallResult("call_9", "pay", {"paid": True}),
            CallResult("call_8", "pay", "no", is_error=True),
        ]
    )

    paid, refused = stored_and_loaded(message).parts

    assert isinstance(paid, ToolReturnPart)
    assert isinstance(refused, ToolReturnPart)
    assert (paid.tool_call_id, paid.outcome) == ("call_9", "success")
    assert (refused.tool_call_id, refused.outcome) == ("call_8", "failed")
    assert refused.model_response_str() == '{"error":"no"}'


def test_a_result_of_nothing_is_still_an_answer() -> None:
    (part,) = stored_and_loaded(results_message([CallResult("c", "t", None)])).parts

    assert isinstance(part, ToolReturnPart)
    assert (part.tool_call_id, part.content) == ("c", None)


@pytest.mark.parametrize(
    "message",
    [
        user_message("half \ud83d"),
        results_message([CallResult("c", "t", {"\udc00": ["half \ud83d"]})]),
        question_message("half \ud83d"),
    ],
    ids=["prompt", "result", "question"],
)
def test_half_a_surrogate_pair_cannot_make_a_message_unsendable(message: ModelMessage) -> None:
    json.dumps(dump_message(message), ensure_ascii=False).encode()


def test_a_pair_of_surrogates_becomes_the_character_it_means() -> None:
    stored = dump_message(user_message("\ud83d\ude00 \ud83d"))

    assert stored["parts"] == [{"content": "😀 \ufffd"}]


def test_only_an_opening_prompt_opens_a_run() -> None:
    assert opens_run(stored_and_loaded(user_message("go")))
    assert not opens_run(stored_and_loaded(user_message("hurry", opens_run=False)))
    assert not opens_run(stored_and_loaded(question_message("Which?")))
    assert not opens_run(results_message([CallResult("c", "t", 1)]))
    assert not opens_run(ModelResponse([TextPart("go")]))


def test_a_question_is_told_as_the_applications_and_not_the_users() -> None:
    (part,) = stored_and_loaded(question_message("Your answer is empty.")).parts

    assert isinstance(part, RetryFeedbackPart)
    assert "not a message from the user" in part.model_response()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "request"},
        {"kind": "verdict", "parts": []},
        {"kind": "request", "parts": ["text"]},
        {"kind": "request", "parts": [{"part_kind": "from-the-future"}]},
        {"kind": "response", "parts": [{"part_kind": "thinking"}]},
    ],
)
def test_what_is_no_stored_message_is_refused(body: dict[str, JsonValue]) -> None:
    with pytest.raises(InvalidInput):
        load_message(body)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(text=st.text(), arguments=st.dictionaries(st.text(), json_values, max_size=4))
def test_any_text_and_arguments_survive(text: str, arguments: dict[str, Any]) -> None:
    response = ModelResponse([TextPart(text), ToolCallPart("t", arguments, "c")])

    assert as_sent(load_message(dump_message(response))) == as_sent(response)


@given(content=json_values)
def test_any_result_survives(content: JsonValue) -> None:
    (part,) = load_message(dump_message(results_message([CallResult("c", "t", content)]))).parts

    assert isinstance(part, ToolReturnPart)
    assert part.content == content
