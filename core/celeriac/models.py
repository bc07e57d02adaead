"""The only place that calls a provider: one request, one attempt, one deadline.

Whether and when to ask again is decided by the run's own, persisted retries (`backoff.py`), so no
other layer may retry: an SDK that makes three attempts under each of ours makes nine, unseen. Every
request therefore tells the SDK to make a single attempt (pydantic-ai's `max_retries` setting), for
models made by name and ready-made ones alike. Out of reach are the retries of an HTTP transport
that you give a provider, and those of the SDKs of Bedrock, Hugging Face, xAI and MCP sampling,
which take them at construction only: leave them off there. A `FallbackModel` asks each of its
models once.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Literal
from weakref import WeakKeyDictionary

from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from celeriac import model_loop
from celeriac.agent import NO_MODEL
from celeriac.errors import InvalidAgent
from celeriac.scripted import ScriptedModel

# The SDK's own limit is kept behind ours, which names the model and is the same for every provider.
_SDK_TIMEOUT_MARGIN_SECONDS = 1.0

# The models each loop has called, by `id`: a pydantic-ai model need not be hashable.
_used: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, Model]] = WeakKeyDictionary()


def resolve_model(model: Model | str) -> Model:
    """The pydantic-ai model of that name, such as `openai:gpt-5`; a model is returned as it is.

    Raises `InvalidAgent` if the name is unknown, the provider's package is not installed or its API
    key is not set. Resolve a name once: each model made here has HTTP connections of its own.
    """
    if isinstance(model, Model):
        return model
    if model == NO_MODEL:
        return ScriptedModel([], name=NO_MODEL)
    try:
        return infer_model(model)
    except Exception as error:  # UserError, ImportError, or whatever the provider's SDK raises
        raise InvalidAgent(
            f"model {model!r} cannot be used: {error} Give a name like 'openai:gpt-5' with the "
            "provider's package installed and its API key in the environment, a pydantic-ai model, "
            "or a ScriptedModel to work offline"
        ) from error


async def request(
    model: Model,
    messages: Sequence[ModelMessage],
    *,
    instructions: str,
    tools: Sequence[ToolDefinition],
    timeout_seconds: float,
    settings: ModelSettings | None = None,
    on_text: Callable[[str], None] | None = None,
) -> ModelResponse:
    """Ask `model` once and return what it answers, good or not (`think_failure.check_response`).

    Runs on the model loop. After `timeout_seconds`, which begin before connecting and last to the
    final byte, the request is aborted and `TimeoutError` raised; cancelling aborts it as well. What
    the provider and its SDK raise is passed on (`think_failure.classify`). If the last message is a
    suspended response, the model goes on with it.

    With `on_text` the answer is streamed, if the model can do that, and each piece of its text is
    handed over at once, on the loop's thread. The response returned is the whole one all the same.
    """
    parameters = ModelRequestParameters(
        function_tools=list(tools),
        # Empty, not None: with None, pydantic-ai would take instructions from an old message.
        instruction_parts=[InstructionPart(content=instructions)] if instructions else [],
    )
    _adopt(model)
    try:
        async with asyncio.timeout(timeout_seconds) as limit:
            question = (
                _sendable(model, messages, parameters),
                _for_one_attempt(model, settings, timeout_seconds),
                parameters,
            )
            if on_text is not None:
                return await _streamed(model, *question, on_text)
            return await model.request(*question)
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(
            f"model {model.model_name!r} did not answer within {timeout_seconds:g} s"
        ) from None


async def _streamed(
    model: Model,
    messages: list[ModelMessage],
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    on_text: Callable[[str], None],
) -> ModelResponse:
    async with AsyncExitStack() as stack:
        try:
            stream = await stack.enter_async_context(
                model.request_stream(messages, settings, parameters)
            )
        except NotImplementedError:  # pydantic-ai's word for a model that only answers as a whole
            return await model.request(messages, settings, parameters)
        async for event in stream:
            if text := _text_of(event):
                on_text(text)
    response = stream.get()
    # A connection that a proxy closes in good order looks like the end of the stream, for which
    # pydantic-ai then supplies "stop". But providers say why they stop, and half an answer must not
    # pass for a whole one.
    is_stopped = response.finish_reason not in (None, "stop") or "finish_reason" in (
        response.provider_details or {}
    )
    is_whole = is_stopped or response.provider_url is None
    return response if is_whole else replace(response, state="incomplete")


def _text_of(event: ModelResponseStreamEvent) -> str:
    match event:
        case PartStartEvent(part=TextPart(content=text)):
            return text
        case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return text
    return ""


def _adopt(model: Model) -> None:
    """Make `model` use connections of this loop, and have them closed with it."""
    loop = asyncio.get_running_loop()
    models = _used.get(loop)
    if models is None:
        models = {}
        model_loop.at_close(partial(_release, models))
        _used[loop] = models
    models[id(model)] = model
    # What a pydantic-ai agent does at the start of each run, and there is no public way: a client
    # last used on a loop that is gone (closed, or the parent's before a fork) is replaced.
    model._refresh_http_client()


async def _release(models: dict[int, Model]) -> None:
    for model in models.values():
        async with model:  # leaving it closes the HTTP client that its provider made
            pass


def _for_one_attempt(
    model: Model, settings: ModelSettings | None, timeout_seconds: float
) -> ModelSettings:
    sent = ModelSettings(**(settings or {}))
    if _heeds(model, "max_retries"):
        sent["max_retries"] = 0
    if _heeds(model, "timeout"):
        sent.setdefault("timeout", timeout_seconds + _SDK_TIMEOUT_MARGIN_SECONDS)
    return sent


def _heeds(model: Model, setting: Literal["max_retries", "timeout"]) -> bool:
    """Whether `model` honours `setting`; one that does not would warn at every request."""
    if isinstance(model, WrapperModel):
        return _heeds(model.wrapped, setting)
    if isinstance(model, FallbackModel):
        return any(_heeds(candidate, setting) for candidate in model.models)
    return setting not in model.unsupported_settings


def _sendable(
    model: Model, messages: Sequence[ModelMessage], parameters: ModelRequestParameters
) -> list[ModelMessage]:
    """`messages` in the shape that the provider's adapter expects."""
    if isinstance(model, ScriptedModel):
        return list(messages)
    folded: list[ModelMessage] = []
    for message in model.prepare_messages(list(messages), parameters):
        before = folded[-1] if folded else None
        if isinstance(before, ModelRequest) and isinstance(message, ModelRequest):
            folded[-1] = _one_request(before, message)
        elif (
            isinstance(before, ModelResponse)
            and isinstance(message, ModelResponse)
            and before.state == "suspended"
        ):
            folded[-1] = _one_response(before, message)
        else:
            folded.append(message)
    return folded


def _one_request(first: ModelRequest, second: ModelRequest) -> ModelRequest:
    """Two requests in a row as one: providers want turns to alternate and results to come first."""
    parts = [*first.parts, *second.parts]
    parts.sort(key=lambda part: not isinstance(part, ToolReturnPart))
    return replace(second, parts=parts)


def _one_response(suspended: ModelResponse, rest: ModelResponse) -> ModelResponse:
    """A response and the one that finished it as the single turn they are.

    A provider that polls a job answers with the whole turn so far, under the same id; one that
    paused it goes on where it was. So does pydantic-ai's agent put them together.
    """
    polled = (
        rest.provider_response_id is not None
        and rest.provider_response_id == suspended.provider_response_id
    )
    if polled or rest.model_name != suspended.model_name:
        return rest
    details = {**(suspended.provider_details or {}), **(rest.provider_details or {})}
    return replace(rest, parts=[*suspended.parts, *rest.parts], provider_details=details or None)
