"""The whole path to a provider: pydantic-ai, OpenAI's SDK, HTTP, a server that fails on purpose."""

# features: 003-01, 003-11
import asyncio
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from celeriac import model_loop
from celeriac.errors import InvalidAgent
from celeriac.messages import (
    CallResult,
    dump_message,
    load_message,
    question_message,
    results_message,
    user_message,
)
from celeriac.models import request, resolve_model
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac.think_failure import ThinkFailure, ThinkFailureKind, check_response, classify
from tests.provider_server import ProviderServer, Reply
from tests.waiting import eventually

K = ThinkFailureKind

WEATHER = ToolDefinition(
    name="weather",
    description="The weather at a place.",
    parameters_json_schema={"type": "object", "properties": {"place": {"type": "string"}}},
)


@pytest.fixture(autouse=True)
def _closed_afterwards() -> Iterator[None]:
    yield
    model_loop.close()


def ask(
    model: Model,
    messages: list[ModelMessage] | None = None,
    *,
    instructions: str = "Be brief.",
    timeout_seconds: float = 5.0,
    settings: ModelSettings | None = None,
) -> ModelResponse:
    return model_loop.run(
        request(
            model,
            messages or [user_message("Hello?")],
            instructions=instructions,
            tools=[WEATHER],
            timeout_seconds=timeout_seconds,
            settings=settings,
        )
    )


def failure_of(model: Model, *, timeout_seconds: float = 5.0) -> ThinkFailure:
    """How asking `model` failed."""
    try:
        response = ask(model, timeout_seconds=timeout_seconds)
    except Exception as error:  # noqa: BLE001  whatever it is, it is to be classified
        return classify(error)
    failure = check_response(response)
    assert failure is not None, f"it did not fail: {response}"
    return failure


def test_an_answer_arrives_with_its_use() -> None:
    with ProviderServer([Reply.text("Grüß Gott 😀")]) as server:
        response = ask(server.model())

        assert check_response(response) is None
        assert response.text == "Grüß Gott 😀"
        assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 7)


def test_instructions_tools_and_history_are_sent() -> None:
    with ProviderServer(
        [Reply.tool_call("weather", '{"place": "Ulm"}'), Reply.text("Rain.")]
    ) as server:
        model = server.model()
        history: list[ModelMessage] = [user_message("Weather in Ulm?")]
        history.append(ask(model, history))
        history.append(results_message([CallResult("call_0", "weather", {"sky": "grey"})]))
        history.append(user_message("Quickly!", opens_run=False))

        response = ask(model, [load_message(dump_message(message)) for message in history])

        assert response.text == "Rain."
        assert [tool["function"]["name"] for tool in server.requests[1]["tools"]] == ["weather"]
        assert [
            (message["role"], message.get("content")) for message in server.requests[1]["messages"]
        ] == [
            ("system", "Be brief."),
            ("user", "Weather in Ulm?"),
            ("assistant", None),
            ("tool", '{"sky":"grey"}'),
            ("user", "Quickly!"),
        ]
        assert server.requests[1]["messages"][3]["tool_call_id"] == "call_0"


def test_a_message_read_from_the_log_is_sent_as_the_live_one_is() -> None:
    with ProviderServer(
        [Reply.tool_call("weather", '{"place":  "Ulm"}'), Reply.text("Rain.")]
    ) as server:
        model = server.model()
        live: list[ModelMessage] = [user_message("Weather?")]
        live.append(ask(model, live))
        live.append(results_message([CallResult("call_0", "weather", "none", is_error=True)]))
        live.append(question_message("And now?"))

        ask(model, live)
        ask(model, [load_message(dump_message(message)) for message in live])

        assert server.requests[1] == server.requests[2]


def test_malformed_arguments_of_a_call_are_no_failed_call_of_the_model() -> None:
    with ProviderServer([Reply.tool_call("weather", '{"place": "Ul')]) as server:
        response = ask(server.model())

        assert check_response(response) is None
        (made,) = response.parts
        assert isinstance(made, ToolCallPart)
        assert made.args == '{"place": "Ul'


FAULTS: dict[str, tuple[Reply, ThinkFailureKind, bool]] = {
    "429": (Reply.rate_limited(), K.RATE_LIMITED, True),
    "429, no credits": (
        Reply.error(429, "You exceeded your quota", code="insufficient_quota"),
        K.QUOTA_EXCEEDED,
        False,
    ),
    "500": (Reply.error(500, "oops"), K.SERVER_ERROR, True),
    "503": (Reply.error(503, "overloaded"), K.SERVER_ERROR, True),
    "502 without JSON": (Reply(status=502, body=b"<html>"), K.SERVER_ERROR, True),
    "408": (Reply.error(408, "too slow"), K.TIMEOUT, True),
    "409": (Reply.error(409, "locked"), K.SERVER_ERROR, True),
    "half a body": (Reply.half_a_body(), K.CONNECTION, True),
    "closed at once": (Reply.closed_at_once(), K.CONNECTION, True),
    "no JSON": (Reply.no_json(), K.MALFORMED_RESPONSE, True),
    "no choices": (Reply.no_choices(), K.MALFORMED_RESPONSE, True),
    "empty": (Reply.text(""), K.EMPTY_RESPONSE, True),
    "content filter": (Reply.text("I", finish_reason="content_filter"), K.REFUSAL, False),
    "context too long": (Reply.context_too_long(), K.CONTEXT_TOO_LONG, False),
    "400": (Reply.error(400, "bad schema"), K.BAD_REQUEST, False),
    "401": (Reply.error(401, "who?", code="invalid_api_key"), K.AUTHENTICATION, False),
    "403": (Reply.error(403, "not you"), K.PERMISSION, False),
    "404": (Reply.error(404, "gone", code="model_not_found"), K.NOT_FOUND, False),
}


@pytest.mark.parametrize(("reply", "kind", "is_transient"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_gets_its_kind_after_exactly_one_request(
    reply: Reply, kind: ThinkFailureKind, is_transient: bool
) -> None:
    with ProviderServer([reply]) as server:
        failure = failure_of(server.model())

        assert (failure.kind, failure.is_transient) == (kind, is_transient)
        assert len(server.requests) == 1


def test_a_hanging_provider_is_hung_up_on_at_the_deadline() -> None:
    with ProviderServer([Reply.hanging()]) as server:
        failure = failure_of(server.model(), timeout_seconds=0.3)

        assert failure.kind == K.TIMEOUT
        assert failure.message == "TimeoutError: model 'gpt-test' did not answer within 0.3 s"
        assert server.wait_until_idle(), "the request was abandoned, but its connection left open"
        assert len(server.requests) == 1


def test_cancelling_hangs_up_on_the_provider() -> None:
    with ProviderServer([Reply.hanging()]) as server:
        future = model_loop.submit(
            request(
                server.model(),
                [user_message("Hello?")],
                instructions="",
                tools=[],
                timeout_seconds=60,
            )
        )
        eventually(lambda: server.requests, what="the request")

        assert future.cancel()

        assert server.wait_until_idle()


def test_nobody_listening_is_a_connection_failure() -> None:
    with ProviderServer([Reply.text("never")]) as server:
        model = server.model()

    assert failure_of(model).kind == K.CONNECTION


@pytest.mark.parametrize(("said", "seconds"), [("7", 7.0), ("0.5", 0.5)])
def test_a_retry_after_header_arrives(said: str, seconds: float) -> None:
    with ProviderServer([Reply.rate_limited(said)]) as server:
        assert failure_of(server.model()).retry_after_seconds == seconds


def test_a_retry_date_is_measured_from_the_servers_own_clock() -> None:
    headers = {
        "Date": "Sun, 01 Mar 2026 12:00:00 GMT",
        "Retry-After": "Sun, 01 Mar 2026 12:01:30 GMT",
    }
    with ProviderServer([Reply.error(503, "maintenance", headers=headers)]) as server:
        failure = failure_of(server.model())

        assert failure.retry_after_seconds == pytest.approx(90.0)


def test_the_agents_own_settings_cannot_bring_sdk_retries_back() -> None:
    with ProviderServer([Reply.error(500, "oops")]) as server:
        with pytest.raises(Exception, match="500"):
            ask(server.model(), settings=ModelSettings(max_retries=5, temperature=0.5))

        assert len(server.requests) == 1
        assert server.requests[0]["temperature"] == 0.5


def test_calls_in_a_row_share_one_connection() -> None:
    with ProviderServer([Reply.text("hi")]) as server:
        model = server.model()
        for _ in range(20):
            ask(model)

        assert (len(server.requests), server.connections) == (20, 1)


def test_calls_from_many_threads_share_a_pool_of_connections() -> None:
    with ProviderServer([Reply.text("hi", delay_seconds=0.05)]) as server:
        model = server.model()
        with ThreadPoolExecutor(4) as pool:
            texts = list(pool.map(lambda _: ask(model).text, range(20)))

        assert texts == ["hi"] * 20
        assert server.most_at_once > 1
        assert server.connections <= 4


def test_a_model_can_be_used_again_after_the_loop_was_closed() -> None:
    with ProviderServer([Reply.text("hi")]) as server:
        model = server.model()
        ask(model)
        model_loop.close()

        assert ask(model).text == "hi"
        assert server.connections == 2


# From Python 3.12 on, forking beside a thread warns. A child of a prefork pool does just that.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_opens_connections_of_its_own_and_leaves_the_parents_alone() -> None:
    with ProviderServer([Reply.text("hi")]) as server:
        model = server.model()
        assert ask(model).text == "hi"
        loop_before = model_loop.run(_running_loop())

        child = os.fork()
        if child == 0:
            _exit_with(lambda: _ask_twice_and_close(model))
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert server.connections == 2
        assert ask(model).text == "hi"
        assert model_loop.run(_running_loop()) is loop_before
        assert (len(server.requests), server.connections) == (4, 2)


def test_two_answers_in_a_row_reach_the_provider_as_the_one_turn_they_are() -> None:
    with ProviderServer([Reply.text("done")]) as server:
        paused = ModelResponse([TextPart("First, ")], model_name="m", state="suspended")
        rest = ModelResponse([TextPart("second.")], model_name="m")

        ask(server.model(), [user_message("Go."), paused, rest, user_message("On.")])

        roles = [message["role"] for message in server.requests[0]["messages"]]
        assert roles == ["system", "user", "assistant", "user"]


def test_a_scripted_model_is_asked_by_the_same_way() -> None:
    model = ScriptedModel([call("weather", place="Ulm"), Turn("Rain.", delay_seconds=0.01)])
    history: list[ModelMessage] = [user_message("Weather?")]
    history.append(ask(model, history))
    history.append(results_message([CallResult("call_0_0", "weather", "grey")]))
    history.append(question_message("And?"))

    assert ask(model, history).text == "Rain."


def test_a_scripted_delay_is_subject_to_the_deadline() -> None:
    model = ScriptedModel([Turn("late", delay_seconds=30)])

    assert failure_of(model, timeout_seconds=0.05).kind == K.TIMEOUT


def test_a_request_needs_the_model_loop() -> None:
    async def ask_elsewhere() -> None:
        await request(
            ScriptedModel([say("x")]),
            [user_message("x")],
            instructions="",
            tools=[],
            timeout_seconds=1,
        )

    with pytest.raises(RuntimeError, match="model loop"):
        asyncio.run(ask_elsewhere())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gpt-5", "Unknown model"),
        ("nobody:gpt-5", "Unknown model"),
        ("openai:gpt-5", "OPENAI_API_KEY"),
        ("anthropic:claude-opus-4-5", "install"),
    ],
)
def test_a_name_that_cannot_be_used_says_why(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    with pytest.raises(InvalidAgent, match=why):
        resolve_model(name)


def test_a_name_becomes_a_model_and_a_model_stays_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    scripted = ScriptedModel([say("x")])

    assert resolve_model("openai-chat:gpt-5").model_name == "gpt-5"
    assert resolve_model(scripted) is scripted


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def _ask_twice_and_close(model: Model) -> None:
    assert [ask(model).text, ask(model).text] == ["hi", "hi"]
    model_loop.close()


def _exit_with(act: object) -> None:
    """Leave a forked child without running the parent's own cleanup."""
    assert callable(act)
    try:
        act()
    except BaseException as error:  # noqa: BLE001  pytest must not go on in the child
        sys.stderr.write(f"in the child: {error!r}\n")
        os._exit(1)
    os._exit(0)
