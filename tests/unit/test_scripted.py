# features: 003-01
import asyncio
import time

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestParameters

from celeriac.errors import InvalidAgent
from celeriac.messages import (
    CallResult,
    dump_message,
    load_message,
    question_message,
    results_message,
    user_message,
)
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say, turn_number

SEARCH_THEN_SAY = ScriptedModel([call("search", query="rain"), say("It will rain.")])


def text_of(response: ModelResponse) -> str:
    return "".join(part.content for part in response.parts if isinstance(part, TextPart))


def run_through(model: ScriptedModel, messages: list[ModelMessage]) -> list[ModelMessage]:
    """`messages` with a whole run added, each tool call answered with "ok"."""
    while True:
        response = model.respond(messages)
        messages = [*messages, response]
        if not response.tool_calls:
            return messages
        messages.append(
            results_message(
                [
                    CallResult(made.tool_call_id, made.tool_name, "ok")
                    for made in response.tool_calls
                ]
            )
        )


def test_turns_are_answered_in_order() -> None:
    messages = run_through(SEARCH_THEN_SAY, [user_message("Weather?")])

    made = messages[1].parts[0]
    last = messages[-1]
    assert isinstance(made, ToolCallPart)
    assert isinstance(last, ModelResponse)
    assert (made.tool_name, made.args) == ("search", {"query": "rain"})
    assert text_of(last) == "It will rain."


def test_the_same_question_gets_the_same_answer_after_a_crash() -> None:
    messages = run_through(SEARCH_THEN_SAY, [user_message("Weather?")])
    reread = [load_message(dump_message(message)) for message in messages]
    another_process = ScriptedModel([call("search", query="rain"), say("It will rain.")])

    for position, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            assert another_process.respond(reread[:position]).parts == message.parts


def test_earlier_runs_of_the_thread_do_not_count() -> None:
    first_run = run_through(SEARCH_THEN_SAY, [user_message("Weather?")])

    second_run = run_through(SEARCH_THEN_SAY, [*first_run, user_message("And tomorrow?")])

    assert len(second_run) == 2 * len(first_run)
    assert turn_number(second_run) == 2


def test_what_is_said_or_asked_during_a_run_starts_no_new_script() -> None:
    messages = run_through(SEARCH_THEN_SAY, [user_message("Weather?")])[:-1]

    hurried = [*messages, user_message("Hurry!", opens_run=False), question_message("Well?")]

    assert text_of(SEARCH_THEN_SAY.respond(hurried)) == "It will rain."


def test_an_exhausted_script_names_the_turn_it_lacks() -> None:
    messages = run_through(SEARCH_THEN_SAY, [user_message("Weather?")])

    with pytest.raises(InvalidAgent, match=r"'scripted' was asked for turn 2 .* of 2 turns"):
        SEARCH_THEN_SAY.answer(messages)


def test_a_function_may_be_the_script() -> None:
    model = ScriptedModel(lambda messages: say(f"{len(messages)} messages"), name="counter")

    response = model.respond([user_message("a"), user_message("b")])

    assert text_of(response) == "2 messages"
    assert response.model_name == "counter"


def test_call_ids_repeat_in_every_run_as_providers_repeat_theirs() -> None:
    turn = Turn(calls=(ToolCall("a", {}), ToolCall("b", '{"x": ', id="mine"), ToolCall("c", {})))
    model = ScriptedModel([turn])

    calls = model.respond([user_message("go")]).tool_calls

    assert [made.tool_call_id for made in calls] == ["call_0_0", "mine", "call_0_2"]
    assert calls[1].args == '{"x": '


def test_a_turn_tells_its_use_and_how_it_ended() -> None:
    model = ScriptedModel(
        [
            Turn("cut", input_tokens=5, output_tokens=6, finish_reason="length"),
            Turn("wait", is_suspended=True),
            call("t"),
        ]
    )
    messages: list[ModelMessage] = [user_message("go")]
    responses = []
    for _ in range(3):
        responses.append(model.respond(messages))
        messages.append(responses[-1])

    assert (responses[0].usage.input_tokens, responses[0].usage.output_tokens) == (5, 6)
    assert [each.finish_reason for each in responses] == ["length", "stop", "tool_call"]
    assert [each.state for each in responses] == ["complete", "suspended", "complete"]


def test_a_scripted_error_is_raised_at_every_attempt_without_growing() -> None:
    model = ScriptedModel([Turn(error=ConnectionResetError("gone"))])
    depths = []

    for _ in range(3):
        with pytest.raises(ConnectionResetError, match="gone") as caught:
            model.respond([user_message("go")])
        depths.append(len(caught.traceback))

    assert depths[0] == depths[-1]


def test_as_a_pydantic_ai_model_it_waits_and_then_answers() -> None:
    model = ScriptedModel([Turn("late", delay_seconds=0.05)])
    started = time.monotonic()

    response = asyncio.run(model.request([user_message("go")], None, ModelRequestParameters()))

    assert text_of(response) == "late"
    assert time.monotonic() - started >= 0.05
