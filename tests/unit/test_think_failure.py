# features: 003-11
import asyncio
import concurrent.futures
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest
from pydantic_ai.exceptions import (
    ContentFilterError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelTimeoutError,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart

from celeriac.errors import InvalidAgent
from celeriac.think_failure import (
    MAX_MESSAGE_CHARACTERS,
    MAX_RETRY_AFTER_SECONDS,
    ThinkFailureKind,
    check_response,
    classify,
    retry_after_seconds,
)

K = ThinkFailureKind


def http_error(
    status: int, headers: dict[str, str] | None = None, body: object = None
) -> ModelHTTPError:
    return ModelHTTPError(status, "m", body, headers=headers)


@pytest.mark.parametrize(
    ("error", "kind", "is_transient"),
    [
        (http_error(429), K.RATE_LIMITED, True),
        (ModelRateLimitError("m", "slow down"), K.RATE_LIMITED, True),
        (ModelQuotaExceededError("m", "pay first"), K.QUOTA_EXCEEDED, False),
        (http_error(500), K.SERVER_ERROR, True),
        (http_error(529), K.SERVER_ERROR, True),
        (http_error(409), K.SERVER_ERROR, True),
        (http_error(408), K.TIMEOUT, True),
        (http_error(400), K.BAD_REQUEST, False),
        (http_error(418), K.BAD_REQUEST, False),
        (http_error(401), K.AUTHENTICATION, False),
        (http_error(403), K.PERMISSION, False),
        (http_error(404), K.NOT_FOUND, False),
        (http_error(413), K.CONTEXT_TOO_LONG, False),
        (ModelConnectionError("m", "refused"), K.CONNECTION, True),
        (ModelTimeoutError("m", "slow"), K.TIMEOUT, True),
        (TimeoutError("slow"), K.TIMEOUT, True),
        (ConnectionResetError(), K.CONNECTION, True),
        (httpx2.ReadTimeout("slow"), K.TIMEOUT, True),
        (httpx2.RemoteProtocolError("half"), K.CONNECTION, True),
        (ModelAPIError("m", "Failed to decode response as JSON"), K.MALFORMED_RESPONSE, True),
        (ModelAPIError("m", "x", provider_error_code="server"), K.SERVER_ERROR, True),
        (UnexpectedModelBehavior("no choices"), K.MALFORMED_RESPONSE, True),
        (json.JSONDecodeError("no", "x", 0), K.MALFORMED_RESPONSE, True),
        (ContentFilterError("no"), K.REFUSAL, False),
        (UserError("no such setting"), K.BAD_REQUEST, False),
        (asyncio.CancelledError(), K.INTERRUPTED, True),
        (concurrent.futures.CancelledError(), K.INTERRUPTED, True),
        (InvalidAgent("the script has ended"), K.CODE_ERROR, False),
        (ZeroDivisionError("division by zero"), K.CODE_ERROR, False),
    ],
    ids=lambda value: repr(value)[:40] if isinstance(value, BaseException) else None,
)
def test_each_error_has_one_kind(
    error: BaseException, kind: ThinkFailureKind, is_transient: bool
) -> None:
    failure = classify(error)

    assert (failure.kind, failure.is_transient) == (kind, is_transient)


def test_a_bug_is_shown_with_its_type() -> None:
    assert classify(ZeroDivisionError("division by zero")).message == (
        "ZeroDivisionError: division by zero"
    )
    assert classify(KeyError()).message == "KeyError"


def test_a_message_is_bounded_and_holds_no_key() -> None:
    key = "sk-proj-" + "a1B2" * 12
    failure = classify(
        http_error(401, body={"message": f"Incorrect API key: {key}", "x": "y" * 9999})
    )

    assert len(failure.message) <= MAX_MESSAGE_CHARACTERS
    assert key not in failure.message
    assert failure.status_code == 401


@pytest.mark.parametrize(("said", "is_transient"), [("false", False), ("true", True)])
def test_a_provider_that_knows_better_is_believed(said: str, is_transient: bool) -> None:
    assert classify(http_error(429, {"x-should-retry": said})).is_transient is is_transient
    assert classify(http_error(400, {"x-should-retry": said})).is_transient is is_transient


def test_of_several_fallback_models_the_hopeful_failure_counts() -> None:
    group = FallbackExceptionGroup(
        "all failed", [http_error(401), http_error(503), http_error(404)]
    )
    hopeless = FallbackExceptionGroup("all failed", [http_error(401), http_error(404)])

    assert classify(group).kind == K.SERVER_ERROR
    assert classify(hopeless).kind == K.NOT_FOUND


NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "86400"}, MAX_RETRY_AFTER_SECONDS),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "tomorrow"}, None),
        (
            {
                "date": format_datetime(NOW, usegmt=True),
                "retry-after": format_datetime(NOW + timedelta(seconds=90), usegmt=True),
            },
            90.0,
        ),
        (
            {
                "date": format_datetime(NOW, usegmt=True),
                "retry-after": format_datetime(NOW - timedelta(seconds=90), usegmt=True),
            },
            0.0,
        ),
        ({"date": "Sun Mar  1 12:00:00 2026", "retry-after": "Sun Mar  1 12:00:05 2026"}, 5.0),
    ],
)
def test_retry_after_is_read_in_all_its_forms(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_seconds(headers) == seconds
    assert classify(http_error(429, headers)).retry_after_seconds == seconds


def test_a_retry_date_without_the_servers_date_is_measured_by_our_clock() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)

    seconds = retry_after_seconds({"retry-after": later})

    assert seconds is not None
    assert 50 < seconds <= 60


def test_a_wait_told_in_the_body_counts_too() -> None:
    assert classify(ModelRateLimitError("m", "x", retry_after=14.0)).retry_after_seconds == 14.0
    assert classify(ModelRateLimitError("m", "x", retry_after=1e9)).retry_after_seconds == (
        MAX_RETRY_AFTER_SECONDS
    )


def test_an_answer_is_no_failure() -> None:
    assert check_response(ModelResponse([TextPart("yes")], finish_reason="stop")) is None
    assert check_response(ModelResponse([TextPart("cut of")], finish_reason="length")) is None
    assert check_response(ModelResponse([ToolCallPart("t", "{malformed")])) is None
    assert check_response(ModelResponse([], state="suspended")) is None


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (ModelResponse([], finish_reason="stop"), K.EMPTY_RESPONSE),
        (ModelResponse([TextPart(" \n")]), K.EMPTY_RESPONSE),
        (ModelResponse([ThinkingPart("hm")], finish_reason="stop"), K.EMPTY_RESPONSE),
        (ModelResponse([ThinkingPart("hm")], finish_reason="length"), K.OUTPUT_LIMIT),
        (ModelResponse([TextPart("I ca")], finish_reason="content_filter"), K.REFUSAL),
        (ModelResponse([TextPart("ye")], state="interrupted"), K.MALFORMED_RESPONSE),
        (ModelResponse([TextPart("ye")], finish_reason="error"), K.SERVER_ERROR),
    ],
)
def test_what_is_no_answer_is_a_failure(response: ModelResponse, kind: ThinkFailureKind) -> None:
    failure = check_response(response)

    assert failure is not None
    assert (failure.kind, failure.is_transient) == (kind, kind.is_transient)


def test_a_refusal_tells_the_providers_reason() -> None:
    response = ModelResponse(
        [], finish_reason="content_filter", provider_details={"refusal": "I can't help with that."}
    )

    failure = check_response(response)

    assert failure is not None
    assert "I can't help with that." in failure.message
