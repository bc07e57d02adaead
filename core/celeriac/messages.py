"""Model messages as the message log keeps them: all that is needed to send them again, and no more.

A stored message is pydantic-ai's own JSON form with what goes without saying left out:

- fields that hold their default, timestamps, and what names this one run or call;
- usage and cost, which have a row of their own;
- `part_kind` of the most common part: text in a response, a user prompt in a request;
- where a response came from (provider, endpoint, response id), unless something in it can only be
  read or looked up there: a signature, an item id, a container, an unfinished turn.

So an assistant message of plain text costs about 100 bytes more than its text. The field names stay
pydantic-ai's, which keeps its own upgrades of old messages working.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, cast

import pydantic_core
from pydantic import ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponsePart,
    RetryFeedbackPart,
    RetryInfo,
    ToolReturnPart,
    UserPromptPart,
)

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput
from celeriac.prompt import DURING_RUN, sendable_text

# The library's own adapter: one for the process, built at first use (20 ms), then 9 us a message.
_ADAPTER = ModelMessagesTypeAdapter

_NEVER_SENT = frozenset(
    {
        "usage",
        "timestamp",
        "model_id",
        "run_id",
        "conversation_id",
        "workspace_ref",
        "failed_attempts",
    }
)
_EXCLUDED = {"__all__": set(_NEVER_SENT)}

_ORIGIN = ("provider_name", "provider_url", "canonical_system", "provider_response_id")

# Entries of a response's `provider_details` that report on the one call and that no adapter reads
# from history. A list of what may go, not of what must stay: an unknown entry is kept.
_ONLY_REPORTED = frozenset({"timestamp", "finish_reason", "service_tier", "logprobs"})

# What only the provider that wrote it understands, in a part or in the response itself.
_BOUND_TO_ORIGIN_PART = frozenset({"id", "signature", "provider_name", "provider_details"})
_BOUND_TO_ORIGIN = frozenset({"provider_details", "history_digest", "state", "metadata"})

_IMPLIED_PART_KIND = {"request": "user-prompt", "response": "text"}

_FILES = "content_file_digests"  # pydantic-ai's record of the files inside a tool's result


@dataclass(frozen=True, slots=True)
class CallResult:
    """What the model is told about one of its tool calls."""

    provider_call_id: str  # the model's own id of the call, which the answer must carry
    tool: str
    content: JsonValue
    is_error: bool = False


def user_message(text: str, *, opens_run: bool = True) -> ModelRequest:
    """What a person said: the prompt that opens a run, or (`opens_run=False`) a word during one."""
    return ModelRequest(
        parts=[UserPromptPart(sendable_text(text))],
        metadata=None if opens_run else dict(DURING_RUN),
    )


def opens_run(message: ModelMessage) -> bool:
    """Whether `message` is the prompt that opened a run, as `user_message` makes it."""
    return (
        isinstance(message, ModelRequest)
        and message.metadata != DURING_RUN
        and any(isinstance(part, UserPromptPart) for part in message.parts)
    )


def results_message(results: Sequence[CallResult]) -> ModelRequest:
    """The answers to the calls of one response, in the order of `results`.

    An error is an answer too: the model reads it as a failed call, in the provider's own form for
    one where there is such a form, and may try something else.
    """
    return ModelRequest(
        parts=[
            ToolReturnPart(
                tool_name=result.tool,
                content=_sendable(result.content),
                tool_call_id=result.provider_call_id,
                outcome="failed" if result.is_error else "success",
            )
            for result in results
        ]
    )


def question_message(text: str) -> ModelRequest:
    """A question from the runtime about the model's last response, such as "your answer is empty".

    The model is told that an application asks and not the user. It does not open a run.
    """
    return ModelRequest(
        parts=[RetryFeedbackPart(sendable_text(text), retry=RetryInfo(cause="model_retry"))]
    )


def dump_message(message: ModelMessage) -> dict[str, JsonValue]:
    """The JSON form of `message` for the log; `load_message` gives back one that sends the same."""
    (dumped,) = _ADAPTER.dump_python([message], mode="json", exclude=_EXCLUDED)
    stored = _without_defaults(dumped, type(message))
    stored["kind"] = message.kind
    stored["parts"] = [
        _dump_part(part, dumped_part, _IMPLIED_PART_KIND[message.kind])
        for part, dumped_part in zip(message.parts, dumped["parts"], strict=True)
    ]
    if message.kind == "response":
        _forget_what_is_only_reported(stored)
    return stored


def load_message(body: Mapping[str, JsonValue]) -> ModelMessage:
    """The message that `dump_message` made `body` of; its usage is empty, its timestamps are new.

    Raises `InvalidInput` if `body` is no such thing, for example written by a newer pydantic-ai.
    """
    kind = body.get("kind")
    implied = _IMPLIED_PART_KIND.get(kind) if isinstance(kind, str) else None
    parts = body.get("parts")
    if implied is None or not isinstance(parts, list):
        raise InvalidInput(
            f"not a stored model message: it has kind {kind!r} and parts of type "
            f"{type(parts).__name__}; `dump_message` writes kind 'request' or 'response' and a list"
        )
    filled: list[JsonValue] = []
    plain_results: dict[int, JsonValue] = {}
    for index, stored in enumerate(parts):
        part = {"part_kind": implied, **stored} if isinstance(stored, dict) else stored
        if isinstance(part, dict) and _holds_plain_result(part):
            plain_results[index] = part.get("content")
            part["content"] = None
        filled.append(part)
    try:
        # By way of JSON text, since only then does pydantic read bytes as base64.
        text = pydantic_core.to_json([{**body, "parts": filled}])
        (message,) = _ADAPTER.validate_json(text)
    except (ValidationError, ValueError) as error:
        raise InvalidInput(
            f"a stored {kind} cannot be read back as a model message: {error}; it may have been "
            "written by a newer version of pydantic-ai than the one installed"
        ) from error
    for index, content in plain_results.items():
        # Past the adapter, which would turn data that looks like one of its files into that file:
        # {"kind": "binary", "data": ..., "media_type": ...} would reach the model as an attachment.
        cast(ToolReturnPart, message.parts[index]).content = content
    return message


def _dump_part(
    part: ModelRequestPart | ModelResponsePart, dumped: dict[str, Any], implied_kind: str
) -> dict[str, Any]:
    stored = _without_defaults(dumped, type(part))
    stored.pop("timestamp", None)
    if part.part_kind != implied_kind:
        stored["part_kind"] = part.part_kind
    if isinstance(part, ToolReturnPart) and part.tool_kind is None and _is_json(part.content):
        stored.pop(_FILES, None)
    return stored


def _holds_plain_result(part: Mapping[str, JsonValue]) -> bool:
    return part["part_kind"] == "tool-return" and _FILES not in part and "tool_kind" not in part


def _forget_what_is_only_reported(stored: dict[str, Any]) -> None:
    details = stored.get("provider_details")
    if details is not None:
        kept = {name: value for name, value in details.items() if name not in _ONLY_REPORTED}
        if kept:
            stored["provider_details"] = kept
        else:
            del stored["provider_details"]
    is_bound = not _BOUND_TO_ORIGIN.isdisjoint(stored) or any(
        not _BOUND_TO_ORIGIN_PART.isdisjoint(part) for part in stored["parts"]
    )
    if not is_bound:
        for name in _ORIGIN:
            stored.pop(name, None)


def _without_defaults(dumped: dict[str, Any], of: type) -> dict[str, Any]:
    defaults = _defaults(of)
    return {
        name: value
        for name, value in dumped.items()
        if name not in defaults or value != defaults[name]
    }


@cache
def _defaults(of: type) -> dict[str, Any]:
    """The constant defaults of a message's or part's fields, by name."""
    return {field.name: field.default for field in fields(of) if field.default is not MISSING}


def _is_json(value: object) -> bool:
    if isinstance(value, list):
        return all(_is_json(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return value is None or isinstance(value, str | int | float)


def _sendable(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return sendable_text(value)
    if isinstance(value, list):
        return [_sendable(item) for item in value]
    if isinstance(value, dict):
        return {sendable_text(key): _sendable(item) for key, item in value.items()}
    return value
