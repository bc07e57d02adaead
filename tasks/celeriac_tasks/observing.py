"""What is seen from outside of steps, model calls and tool calls: figures, and spans if asked for.

The names of attributes are those of OpenTelemetry's semantic conventions for generative AI.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celeriac.context import ToolContext
from celeriac.errors import DatabaseUnavailable, Fenced
from celeriac.states import StepKind
from celeriac.tools import Tool
from celeriac_storage.claims import Claim
from celeriac_storage.step_record import ModelCall
from celeriac_tasks import tracing
from celeriac_tasks.loaded_agent import LoadedAgent
from celeriac_tasks.metrics import worker as figures


@contextmanager
def step(claim: Claim) -> Iterator[None]:
    """A step from its claim to its commit."""
    kind = StepKind.of(claim.phase).value
    began_at = time.perf_counter()
    attributes: tracing.Attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": claim.agent,
        "gen_ai.conversation.id": claim.thread_id,
        "celeriac.run.id": claim.run_id,
        "celeriac.step": claim.step,
        "celeriac.step.kind": kind,
        "celeriac.step.attempt": claim.epoch,  # counts claims
        "celeriac.worker.id": claim.worker_id,
    }
    try:
        with tracing.span_of_run(
            f"invoke_agent {claim.agent}", attributes, claim.run_id, claim.traceparent
        ):
            yield
    except BaseException as error:
        figures.STEPS_LOST.labels(_why(error)).inc()
        raise
    figures.STEP_SECONDS.labels(claim.agent, kind).observe(time.perf_counter() - began_at)


class ModelCallSeen:
    """What came of a model call; said before the end of the block."""

    def __init__(self) -> None:
        self.record: ModelCall | None = None


@contextmanager
def model_call(loaded: LoadedAgent, claim: Claim) -> Iterator[ModelCallSeen]:
    """One request to the agent's model."""
    seen, model = ModelCallSeen(), loaded.model
    began_at = time.perf_counter()
    attributes: tracing.Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": model.system,
        "gen_ai.request.model": model.model_name,
        "gen_ai.agent.name": claim.agent,
        "celeriac.model_call.attempt": claim.failed_thinks + 1,
    }
    with tracing.span(f"chat {model.model_name}", attributes, "client") as span:
        yield seen
        if (record := seen.record) is None:
            return
        seconds = time.perf_counter() - began_at
        figures.MODEL_CALL_SECONDS.labels(claim.agent, record.outcome).observe(seconds)
        for direction, tokens in (("input", record.input_tokens), ("output", record.output_tokens)):
            figures.MODEL_TOKENS.labels(claim.agent, direction).inc(tokens)
            span.note({f"gen_ai.usage.{direction}_tokens": tokens})
        if record.outcome != "answered":
            span.fail(record.outcome)


class ToolCallSeen:
    """What came of a tool call; said before the end of the block."""

    def __init__(self) -> None:
        self.outcome = "ended the step"  # its error is raised as it is
        self.error_kind: str | None = None


@contextmanager
def tool_call(tool: Tool[..., Any], context: ToolContext) -> Iterator[ToolCallSeen]:
    """One call of a tool's function."""
    seen = ToolCallSeen()
    began_at = time.perf_counter()
    attributes: tracing.Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool.name,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": context.call_id,
        "celeriac.run.id": context.run_id,
        "celeriac.tool.effect": tool.effect.value,
        "celeriac.tool.attempt": context.attempt,
    }
    try:
        with tracing.span(f"execute_tool {tool.name}", attributes) as span:
            yield seen
            if seen.error_kind is not None:
                span.fail(seen.error_kind)
    finally:
        seconds = time.perf_counter() - began_at
        figures.TOOL_CALL_SECONDS.labels(tool.name, seen.outcome).observe(seconds)


def _why(error: BaseException) -> str:
    match error:
        case Fenced():
            return "fenced"
        case DatabaseUnavailable():
            return "database"
        case _:
            return "error"
