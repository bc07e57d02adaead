"""Spans of steps, model calls and tool calls, if the standard OTEL_* variables ask for them.

All spans of a run belong to one trace, whichever workers make its steps: to the caller's, which
stands in the run's row, else to one whose id follows from the run's. So nothing needs to be told
from one process to the next, and nothing is lost with one that dies.

Attributes are ids, names and numbers: never what a model or a tool was told or said.
"""

import hashlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from celeriac.ids import RunId

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

Attributes = Mapping[str, str | int | float]

STOP_SECONDS = 2.0

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_provider: "TracerProvider | None" = None
_tracer: "Tracer | None" = None


def start_tracing(service: str) -> None:
    """Make spans in this process from now on, if its environment asks for them. After the fork."""
    exporters = _exporters(os.environ)
    if not exporters:
        return
    try:
        _start(service, exporters)
    except ImportError as error:
        logger.warning("OTEL_* variables ask for traces, and celeriac[otel] is missing: %s", error)


def stop_tracing() -> None:
    """Send what is left; a collector that is away is not waited for much longer."""
    global _provider, _tracer
    provider, _provider, _tracer = _provider, None, None
    if provider is not None:
        ending = threading.Thread(target=provider.shutdown, daemon=True)
        ending.start()
        ending.join(STOP_SECONDS)


class Watched:
    """A span in progress; without tracing it takes what it is told and forgets it."""

    def __init__(self, span: "Span | None") -> None:
        self._span = span

    def note(self, attributes: Attributes) -> None:
        if self._span is not None:
            self._span.set_attributes(attributes)

    def fail(self, kind: str) -> None:
        """It did not succeed, for this kind of reason. What an error says may hold anything."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", kind)
            self._span.set_status(StatusCode.ERROR)


_UNWATCHED = Watched(None)


@contextmanager
def span(
    name: str, attributes: Attributes, kind: Literal["internal", "client"] = "internal"
) -> Iterator[Watched]:
    """A span in the one that the caller is in."""
    with _spanned(name, attributes, kind, None) as watched:
        yield watched


@contextmanager
def span_of_run(
    name: str, attributes: Attributes, run_id: RunId, traceparent: str | None
) -> Iterator[Watched]:
    """A span in the run's trace."""
    if _tracer is None:
        yield _UNWATCHED
        return
    with _spanned(name, attributes, "internal", _trace_of(run_id, traceparent)) as watched:
        yield watched


@contextmanager
def _spanned(
    name: str, attributes: Attributes, kind: str, context: "Context | None"
) -> Iterator[Watched]:
    if _tracer is None:
        yield _UNWATCHED
        return
    from opentelemetry.trace import SpanKind

    with _tracer.start_as_current_span(
        name,
        context,
        SpanKind[kind.upper()],
        attributes,
        record_exception=False,  # its text may hold anything
        set_status_on_exception=False,
    ) as made:
        watched = Watched(made)
        try:
            yield watched
        except BaseException as error:
            watched.fail(type(error).__name__)
            raise


def _trace_of(run_id: RunId, traceparent: str | None) -> "Context":
    from opentelemetry.sdk.trace.sampling import Decision
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    if traceparent is not None:
        _, trace_id, span_id, flags = traceparent.split("-")
        parent = SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=True,
            trace_flags=TraceFlags(int(flags, 16)),
        )
        return set_span_in_context(NonRecordingSpan(parent))
    digest = hashlib.sha256(run_id.encode()).digest()
    own_trace = int.from_bytes(digest[:16]) or 1
    assert _provider is not None
    # As for a trace that begins here: the same for each of its steps, wherever that is made.
    sampled = _provider.sampler.should_sample(None, own_trace, "run")
    parent = SpanContext(
        own_trace,
        int.from_bytes(digest[16:24]) or 1,
        is_remote=True,
        trace_flags=TraceFlags(int(sampled.decision is Decision.RECORD_AND_SAMPLE)),
    )
    return set_span_in_context(NonRecordingSpan(parent))


def _exporters(environment: Mapping[str, str]) -> list[str]:
    """Which ones the variables name; none if they ask for no traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = environment.get("OTEL_TRACES_EXPORTER", "")
    if not named.strip():
        named = "otlp" if any(environment.get(each) for each in _ENDPOINTS) else ""
    return [each.strip() for each in named.split(",") if each.strip() not in ("", "none")]


def _start(service: str, exporters: list[str]) -> None:
    global _provider, _tracer
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import (
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SpanExporter,
    )

    is_named = "service.name" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "") or os.environ.get(
        "OTEL_SERVICE_NAME"
    )
    provider = TracerProvider(
        resource=Resource.create({} if is_named else {"service.name": service}),
        shutdown_on_exit=False,
    )
    for name in exporters:
        exporter: SpanExporter
        match name:
            case "otlp":
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter()
            case "console":
                exporter = ConsoleSpanExporter()
            case _:
                logger.warning("OTEL_TRACES_EXPORTER names %s; otlp and console are known", name)
                continue
        provider.add_span_processor(BatchSpanProcessor(exporter))
    _provider = provider
    _tracer = provider.get_tracer("celeriac")
