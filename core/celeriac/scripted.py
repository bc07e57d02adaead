"""A model that follows a script: no network, no key, and the same answer to the same question.

For examples, tests and benchmarks. A run that crashed asks the same question again and gets the
same answer, because the answer depends on the messages alone.

    ScriptedModel([call("search", query="rain"), say("It will rain.")])
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from pydantic_ai.messages import (
    FinishReason,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from celeriac.errors import InvalidAgent
from celeriac.messages import opens_run


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that a turn makes. A text as `arguments` is sent as it is, even if it is no JSON."""

    tool: str
    arguments: Mapping[str, object] | str
    id: str | None = None  # the provider's id; without one `call_TURN_INDEX`, the same in every run


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model: text, tool calls, both, or an error instead."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    delay_seconds: float = 0.0
    word_seconds: float = 0.0  # that each word takes, if the agent streams
    error: Exception | None = None  # raised after the delay, at every attempt
    input_tokens: int = 100
    output_tokens: int = 20
    finish_reason: FinishReason | None = None  # without one, "tool_call" or "stop"
    is_suspended: bool = False  # the model pauses here and waits to be asked for the rest


Script = Sequence[Turn] | Callable[[Sequence[ModelMessage]], Turn]


def say(text: str) -> Turn:
    """A turn of plain text."""
    return Turn(text=text)


def call(tool: str, /, **arguments: object) -> Turn:
    """A turn that calls one tool."""
    return Turn(calls=(ToolCall(tool, arguments),))


class ScriptedModel(Model):
    """A pydantic-ai model that answers from `script`.

    `script` is either the turns of every run of the agent, or a function from the messages to the
    next turn. The function must be deterministic in its argument and must not block.

    Turn number N (from 0) answers the question before which the run has N responses. They are
    counted from the last prompt that opened a run (`messages.user_message`), so earlier runs of the
    thread do not count, a crash does not, and neither does what a person says during the run. The
    messages must reach back to that prompt.
    """

    def __init__(self, script: Script, name: str = "scripted") -> None:
        super().__init__()
        self._script: Script = script if callable(script) else tuple(script)
        self._name = name

    @property
    def model_name(self) -> str:
        return self._name

    @property
    def system(self) -> str:
        return "scripted"

    def answer(self, messages: Sequence[ModelMessage]) -> Turn:
        """The turn that answers `messages`. Raises `InvalidAgent` if the script has none."""
        if callable(self._script):
            return self._script(messages)
        number = turn_number(messages)
        if number >= len(self._script):
            raise InvalidAgent(
                f"model {self._name!r} was asked for turn {number} (counted from 0) of a script of "
                f"{len(self._script)} turns; a run goes on until a turn calls no tool, so end the "
                "script with one"
            )
        return self._script[number]

    def respond(self, messages: Sequence[ModelMessage], turn: Turn | None = None) -> ModelResponse:
        """The response to `messages` at once, whatever the delay; raises the turn's error.

        Give `turn` if `answer(messages)` has been asked already. This needs no event loop, and a
        turn without a delay can be had in a few microseconds.
        """
        if turn is None:
            turn = self.answer(messages)
        if turn.error is not None:
            # Without the traceback of the attempt before, to which this one would be added.
            raise turn.error.with_traceback(None)
        parts: list[ModelResponsePart] = [TextPart(turn.text)] if turn.text else []
        if turn.calls:
            number = turn_number(messages)
            parts.extend(
                ToolCallPart(
                    made.tool,
                    made.arguments if isinstance(made.arguments, str) else dict(made.arguments),
                    made.id or f"call_{number}_{index}",
                )
                for index, made in enumerate(turn.calls)
            )
        return ModelResponse(
            parts,
            usage=RequestUsage(input_tokens=turn.input_tokens, output_tokens=turn.output_tokens),
            model_name=self._name,
            finish_reason=turn.finish_reason or ("tool_call" if turn.calls else "stop"),
            state="suspended" if turn.is_suspended else "complete",
        )

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        turn = self.answer(messages)
        if turn.delay_seconds > 0:
            await asyncio.sleep(turn.delay_seconds)
        return self.respond(messages, turn)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """The same response, its text word by word."""
        turn = self.answer(messages)
        if turn.delay_seconds > 0:
            await asyncio.sleep(turn.delay_seconds)
        yield _Words(model_request_parameters, self.respond(messages, turn), turn.word_seconds)

    def prepare_messages(
        self,
        messages: list[ModelMessage],
        model_request_parameters: ModelRequestParameters | None = None,
    ) -> list[ModelMessage]:
        """`messages` as they are: rewritten for a provider, a run's first prompt is not to be told
        from what came during it."""
        return messages


@dataclass
class _Words(StreamedResponse):
    """A response whose text is said word by word."""

    response: ModelResponse
    word_seconds: float

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        self.finish_reason = self.response.finish_reason
        self.state = self.response.state
        self._usage = self.response.usage
        for number, part in enumerate(self.response.parts):
            if isinstance(part, ToolCallPart):
                yield self._parts_manager.handle_tool_call_part(
                    vendor_part_id=number,
                    tool_name=part.tool_name,
                    args=cast(str | dict[str, Any], part.args),  # as `respond` makes them
                    tool_call_id=part.tool_call_id,
                )
            elif isinstance(part, TextPart):
                for word in re.findall(r"\S+\s*|\s+", part.content):
                    if self.word_seconds > 0:
                        await asyncio.sleep(self.word_seconds)
                    for event in self._parts_manager.handle_text_delta(
                        vendor_part_id=number, content=word
                    ):
                        yield event

    async def close_stream(self) -> None:
        pass  # there is no connection

    @property
    def model_name(self) -> str:
        assert self.response.model_name is not None
        return self.response.model_name

    @property
    def provider_name(self) -> str | None:
        return None

    @property
    def provider_url(self) -> str | None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self.response.timestamp


def turn_number(messages: Sequence[ModelMessage]) -> int:
    """How many responses there are after the last prompt that opened a run."""
    responses = 0
    for message in reversed(messages):
        if message.kind == "response":
            responses += 1
        elif opens_run(message):
            break
    return responses
