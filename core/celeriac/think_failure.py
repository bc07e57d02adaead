"""Why a model call failed, and whether asking again may help.

Providers fail in many ways; a run has to decide between few. `classify` sorts an exception into one
kind, `check_response` a response that came back but is no answer. What waiting cannot cure, such as
a key that is not accepted, is permanent. A bug in our or the user's code is permanent too and shows
its type, since repeating it costs money and hides it.
"""

import asyncio
import concurrent.futures
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

from pydantic_ai.exceptions import (
    ContentFilterError,
    FallbackExceptionGroup,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    OutputTokenLimitExceeded,
    UnexpectedModelBehavior,
    UserError,
)
from pydantic_ai.messages import FilePart, ModelResponse, TextPart, ToolCallPart

from celeriac.secrets import redact

MAX_MESSAGE_CHARACTERS = 500

# A provider may ask for hours; then we look again after one, in case it has recovered.
MAX_RETRY_AFTER_SECONDS = 3600.0


class ThinkFailureKind(StrEnum):
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"  # the provider failed, is overloaded or under maintenance
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    MALFORMED_RESPONSE = "malformed_response"  # half a body, no JSON, no choices
    EMPTY_RESPONSE = "empty_response"  # well-formed, with neither text nor a tool call
    INTERRUPTED = "interrupted"  # this worker stopped waiting, for example to shut down
    OUTPUT_LIMIT = "output_limit"  # all output tokens were used up before there was an answer
    REFUSAL = "refusal"  # the model or the provider's content filter declined
    CONTEXT_TOO_LONG = "context_too_long"
    QUOTA_EXCEEDED = "quota_exceeded"  # credits or a spending limit, not a rate
    BAD_REQUEST = "bad_request"
    AUTHENTICATION = "authentication"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    CODE_ERROR = "code_error"  # an exception of our, the user's or a library's code

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self in _TRANSIENT


_TRANSIENT = frozenset(
    {
        ThinkFailureKind.RATE_LIMITED,
        ThinkFailureKind.SERVER_ERROR,
        ThinkFailureKind.TIMEOUT,
        ThinkFailureKind.CONNECTION,
        ThinkFailureKind.MALFORMED_RESPONSE,
        ThinkFailureKind.EMPTY_RESPONSE,
        ThinkFailureKind.INTERRUPTED,
    }
)

UNBILLED = frozenset(
    {
        ThinkFailureKind.RATE_LIMITED,
        ThinkFailureKind.SERVER_ERROR,
        ThinkFailureKind.CONTEXT_TOO_LONG,
        ThinkFailureKind.QUOTA_EXCEEDED,
        ThinkFailureKind.BAD_REQUEST,
        ThinkFailureKind.AUTHENTICATION,
        ThinkFailureKind.PERMISSION,
        ThinkFailureKind.NOT_FOUND,
    }
)
"""With these the provider has refused the request, and bills nobody for it. After all others nobody
can know, unless there is a response."""

# Subclasses before their bases.
_KIND_BY_TYPE: tuple[tuple[type[BaseException], ThinkFailureKind], ...] = (
    (ModelRateLimitError, ThinkFailureKind.RATE_LIMITED),
    (ModelQuotaExceededError, ThinkFailureKind.QUOTA_EXCEEDED),
    (ModelUnavailableError, ThinkFailureKind.SERVER_ERROR),
    (ModelServerError, ThinkFailureKind.SERVER_ERROR),
    (ModelContextWindowExceededError, ThinkFailureKind.CONTEXT_TOO_LONG),
    (ModelAuthenticationError, ThinkFailureKind.AUTHENTICATION),
    (ModelNotFoundError, ThinkFailureKind.NOT_FOUND),
    (ModelRequestTimeout, ThinkFailureKind.TIMEOUT),
    (ModelTimeoutError, ThinkFailureKind.TIMEOUT),
    (ModelConnectionError, ThinkFailureKind.CONNECTION),
    (ModelRequestRejectedError, ThinkFailureKind.BAD_REQUEST),
    (ContentFilterError, ThinkFailureKind.REFUSAL),
    (OutputTokenLimitExceeded, ThinkFailureKind.OUTPUT_LIMIT),
    (UnexpectedModelBehavior, ThinkFailureKind.MALFORMED_RESPONSE),
    (json.JSONDecodeError, ThinkFailureKind.MALFORMED_RESPONSE),
    (UserError, ThinkFailureKind.BAD_REQUEST),
    (asyncio.CancelledError, ThinkFailureKind.INTERRUPTED),
    (concurrent.futures.CancelledError, ThinkFailureKind.INTERRUPTED),
    (TimeoutError, ThinkFailureKind.TIMEOUT),
    (ConnectionError, ThinkFailureKind.CONNECTION),
)

_KIND_BY_STATUS = {
    401: ThinkFailureKind.AUTHENTICATION,
    402: ThinkFailureKind.QUOTA_EXCEEDED,
    403: ThinkFailureKind.PERMISSION,
    404: ThinkFailureKind.NOT_FOUND,
    408: ThinkFailureKind.TIMEOUT,
    409: ThinkFailureKind.SERVER_ERROR,  # a lock was not had in time; OpenAI's SDK retries it too
    413: ThinkFailureKind.CONTEXT_TOO_LONG,
    429: ThinkFailureKind.RATE_LIMITED,
}

# What an adapter raises that trusts a response too much: IndexError if there are no choices.
_TOO_TRUSTING = (LookupError, TypeError, AttributeError, ValueError)


@dataclass(frozen=True, slots=True)
class ThinkFailure:
    """One failed attempt at a think step, fit to be stored and shown."""

    kind: ThinkFailureKind
    message: str  # redacted, at most MAX_MESSAGE_CHARACTERS
    retry_after_seconds: float | None = None  # the provider's wish, up to MAX_RETRY_AFTER_SECONDS
    status_code: int | None = None
    is_transient: bool = False


def classify(error: BaseException) -> ThinkFailure:
    """The failure that `error`, raised by `models.request` or a scripted model, stands for."""
    if isinstance(error, FallbackExceptionGroup):
        return _most_hopeful([classify(each) for each in error.exceptions])
    kind = _kind(error)
    hint = error.provider_retry_hint if isinstance(error, ModelHTTPError) else None
    return ThinkFailure(
        kind=kind,
        message=_message(error),
        retry_after_seconds=_retry_after(error),
        status_code=_status_code(error),
        is_transient=kind.is_transient if hint is None else hint,
    )


def check_response(response: ModelResponse) -> ThinkFailure | None:
    """What is wrong with `response` as an answer, or None if a step can be made of it.

    A suspended response is none of these, however empty: the model goes on with it. Whether a tool
    call's arguments are any good is not looked at; the model is told about that.
    """
    details = response.provider_details or {}
    if response.finish_reason == "content_filter":
        why = details.get("refusal") or details.get("content_filter_result") or "no reason given"
        return _failure(ThinkFailureKind.REFUSAL, f"the model or its provider declined: {why}")
    if response.state == "suspended":
        return None
    if response.finish_reason == "error":
        return _failure(
            ThinkFailureKind.SERVER_ERROR, "the provider ended the response with an error"
        )
    if response.state != "complete":
        return _failure(
            ThinkFailureKind.MALFORMED_RESPONSE,
            f"the response is {response.state}: its end is missing",
        )
    if any(_is_substance(part) for part in response.parts):
        return None
    if response.finish_reason == "length":
        return _failure(
            ThinkFailureKind.OUTPUT_LIMIT,
            f"the model used up its output tokens ({response.usage.output_tokens}) before it said "
            "anything; raise max_tokens in the agent's model settings",
        )
    return _failure(
        ThinkFailureKind.EMPTY_RESPONSE, "the response has neither text nor a tool call"
    )


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """How long the provider wishes us to wait, or None if it does not say.

    Reads `retry-after-ms` (OpenAI, Anthropic), then `Retry-After` as seconds or as an HTTP date
    (RFC 9110, section 10.2.3), which is compared with the response's own `Date`, so that our clock
    may be wrong. Names of `headers` are in lower case.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return min(milliseconds / 1000, MAX_RETRY_AFTER_SECONDS)
    wish = headers.get("retry-after")
    seconds = _number(wish)
    if seconds is None and (until := _date(wish)) is not None:
        now = _date(headers.get("date")) or datetime.now(UTC)
        seconds = max(0.0, (until - now).total_seconds())
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER_SECONDS)


def _kind(error: BaseException) -> ThinkFailureKind:
    status = _status_code(error)
    if status == 403 and isinstance(error, ModelAuthenticationError):
        return ThinkFailureKind.PERMISSION
    for error_type, kind in _KIND_BY_TYPE:
        if isinstance(error, error_type):
            return kind
    if status is not None and status >= 400:
        fallback = ThinkFailureKind.SERVER_ERROR if status >= 500 else ThinkFailureKind.BAD_REQUEST
        return _KIND_BY_STATUS.get(status, fallback)
    if isinstance(error, ModelAPIError):
        # Without a status or category: an error inside a response that began well, or a body that
        # the SDK could not decode.
        told = error.provider_error_code or error.provider_error_type
        return ThinkFailureKind.SERVER_ERROR if told else ThinkFailureKind.MALFORMED_RESPONSE
    if isinstance(error, _TOO_TRUSTING) and _raised_in(error).startswith("pydantic_ai.models."):
        return ThinkFailureKind.MALFORMED_RESPONSE
    return _transport_kind(error) or ThinkFailureKind.CODE_ERROR


def _raised_in(error: BaseException) -> str:
    """The name of the module whose code raised `error`."""
    traceback = error.__traceback__
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return str(traceback.tb_frame.f_globals.get("__name__", ""))


def _transport_kind(error: BaseException) -> ThinkFailureKind | None:
    """The kind of an HTTP library's error that no adapter wrapped; httpx and httpx2 share names."""
    names = {
        each.__name__
        for each in type(error).__mro__
        if each.__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")
    }
    if "TimeoutException" in names:
        return ThinkFailureKind.TIMEOUT
    if "DecodingError" in names:
        return ThinkFailureKind.MALFORMED_RESPONSE
    if names:
        return ThinkFailureKind.CONNECTION
    return None


def _status_code(error: BaseException) -> int | None:
    status = getattr(error, "status_code", None)
    return status if isinstance(status, int) and not isinstance(status, bool) else None


def _retry_after(error: BaseException) -> float | None:
    if isinstance(error, ModelHTTPError) and error.headers is not None:
        seconds = retry_after_seconds(error.headers)
        if seconds is not None:
            return seconds
    # Some providers say it in the body, which pydantic-ai reads.
    if isinstance(error, ModelAPIError) and error.retry_after is not None:
        return min(error.retry_after, MAX_RETRY_AFTER_SECONDS)
    return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _is_substance(part: object) -> bool:
    if isinstance(part, TextPart):
        return bool(part.content.strip())
    return isinstance(part, ToolCallPart | FilePart)


def _most_hopeful(failures: list[ThinkFailure]) -> ThinkFailure:
    """Of the failures of a chain of fallback models, one that may pass, else the last one."""
    return next((failure for failure in failures if failure.is_transient), failures[-1])


def _failure(kind: ThinkFailureKind, message: str) -> ThinkFailure:
    return ThinkFailure(kind, _bounded(message), is_transient=kind.is_transient)


def _message(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, ModelAPIError):
        return _bounded(text)
    return _bounded(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _bounded(text: str) -> str:
    text = redact(text)
    if len(text) <= MAX_MESSAGE_CHARACTERS:
        return text
    return text[: MAX_MESSAGE_CHARACTERS - 1] + "…"
