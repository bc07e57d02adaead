"""Spans of a run: in one trace whoever makes its steps, named by the conventions, without a word of
what was said; and nothing at all where nobody asked for them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celeriac import Agent, Client, ToolError, tool, traceparent
from celeriac.ids import RunId
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac_storage.database import Database
from celeriac_tasks import tracing
from celeriac_tasks.metrics import worker as figures
from tests.worker_in_process import Worker

SECRET = "told-in-confidence"
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WANTED = {"OTEL_TRACES_EXPORTER": "console"}


@tool(effect="none")
def look(order: str) -> str:
    """Look at an order."""
    with trace.get_tracer("shop").start_as_current_span("the tool's own"):
        return f"{order} {SECRET}"


@tool(effect="external")
def refund(order: str) -> str:
    """Pay it back."""
    raise ToolError(f"no money for {order}")


SCRIPT: Sequence[Turn] = [
    Turn(calls=(*call("look", order=SECRET).calls, *call("look", order="O-2").calls)),
    call("refund", order=SECRET),
    say(f"Done, {SECRET}"),
]


def agent() -> Agent:
    return Agent("desk", ScriptedModel(list(SCRIPT)), tools=[look, refund])


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Spans as a process makes them that was asked for some."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_provider", provider)
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("celeriac"))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # the tool's own spans
    yield exporter
    provider.shutdown()


@pytest.fixture
def workers(database_url: str, broker_url: str) -> Iterator[list[Worker]]:
    """Two that have the agent: two processes as far as a run can tell."""
    workers = [Worker(database_url, broker_url, [agent()]) for _ in range(2)]
    for worker in workers:
        worker.process.start()
    yield workers
    for worker in workers:
        worker.process.stop()


def take_all(workers: Sequence[Worker], run_id: RunId) -> None:
    """Step by step, each by the other worker."""
    for number in range(5):
        workers[number % 2].step(run_id)


def ids(spans: Sequence[ReadableSpan]) -> set[str]:
    return {f"{span.context.trace_id:032x}" for span in spans if span.context is not None}


def start(database_url: str, run_id: str) -> None:
    with Client(database_url) as client:
        client.start("desk", "hello", run_id=run_id)


def test_all_steps_are_in_the_callers_trace_whichever_worker_makes_them(
    exported: InMemorySpanExporter, workers: list[Worker], database_url: str
) -> None:
    shop = trace.get_tracer("shop")
    with shop.start_as_current_span("an order comes in") as caller:
        start(database_url, "r1")
        own = traceparent.current()

    take_all(workers, RunId("r1"))

    spans = [span for span in exported.get_finished_spans() if span.name != caller.name]  # type: ignore[attr-defined]  # the SDK's have one
    steps = [span for span in spans if span.name == "invoke_agent desk"]
    assert own is not None
    assert ids(spans) == {own.split("-")[1]}
    assert [span.attributes["celeriac.step"] for span in steps if span.attributes] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert {f"{span.parent.span_id:016x}" for span in steps if span.parent} == {own.split("-")[2]}
    assert len({dict(span.attributes or {})["celeriac.worker.id"] for span in steps}) == 2


def test_a_run_that_nobody_traced_has_a_trace_of_its_own_that_follows_from_its_id(
    exported: InMemorySpanExporter, workers: list[Worker], database_url: str
) -> None:
    start(database_url, "r1")
    start(database_url, "r2")

    take_all(workers, RunId("r1"))
    first = ids(exported.get_finished_spans())
    exported.clear()
    take_all(workers, RunId("r2"))

    assert len(first) == 1
    assert len(ids(exported.get_finished_spans()) | first) == 2


def test_spans_have_the_conventions_names_and_nothing_that_was_said(
    exported: InMemorySpanExporter, workers: list[Worker], database_url: str
) -> None:
    start(database_url, "r1")
    take_all(workers, RunId("r1"))

    spans = exported.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans if span.context is not None}
    told = [(span.name, dict(span.attributes or {})) for span in spans]
    assert {name for name, _ in told} == {
        "invoke_agent desk",
        "chat scripted",
        "execute_tool look",
        "execute_tool refund",
        "the tool's own",
    }
    parents = {
        (span.name, by_id[span.parent.span_id].name)
        for span in spans
        if span.parent is not None and span.parent.span_id in by_id
    }
    assert parents == {
        ("chat scripted", "invoke_agent desk"),
        ("execute_tool look", "invoke_agent desk"),
        ("execute_tool refund", "invoke_agent desk"),
        ("the tool's own", "execute_tool look"),
    }
    (chat, *_) = [attributes for name, attributes in told if name == "chat scripted"]
    assert chat["gen_ai.operation.name"] == "chat"
    assert chat["gen_ai.request.model"] == "scripted"
    assert {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"} <= chat.keys()
    (failed,) = [attributes for name, attributes in told if name == "execute_tool refund"]
    assert failed["gen_ai.tool.name"] == "refund"
    assert failed["gen_ai.tool.call.id"] == "2.0"
    assert failed["error.type"] == "tool_error"
    everything = [span.to_json() for span in spans]
    assert SECRET not in "".join(everything)
    assert {key.partition(".")[0] for _, attributes in told for key in attributes} <= {
        "gen_ai",
        "celeriac",
        "error",
    }


def test_a_step_that_is_lost_is_an_error_and_counted(
    exported: InMemorySpanExporter, database: Database, broker_url: str
) -> None:
    @tool(effect="none")
    def take_away() -> str:
        """Do what a verdict does."""
        with database.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE celeriac.runs SET status = 'queued', claim_token = NULL"
            )
        return "gone"

    loser = Agent("loser", ScriptedModel([call("take_away"), say("x")]), tools=[take_away])
    worker = Worker(database.url, broker_url, [loser])
    worker.process.start()
    lost = figures.STEPS_LOST.labels("fenced")
    before = lost._value.get()
    run_id = worker.start("loser")

    worker.step(run_id)
    worker.step(run_id)
    worker.process.stop()

    _, step = [each for each in exported.get_finished_spans() if each.name == "invoke_agent loser"]
    assert dict(step.attributes or {})["error.type"] == "Fenced"
    assert lost._value.get() == before + 1


def test_without_the_variables_there_is_no_span_and_nothing_is_imported() -> None:
    program = (
        "import sys\n"
        "from celeriac_tasks import tracing\n"
        "tracing.start_tracing('x')\n"
        "with tracing.span_of_run('x', {}, 'r', None) as span: span.fail('x')\n"
        "print(tracing._tracer, any(m.startswith('opentelemetry.sdk') for m in sys.modules))\n"
    )
    off: list[dict[str, str]] = [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", **WANTED},
    ]
    environment = {name: value for name, value in os.environ.items() if "OTEL" not in name}
    for variables in off:
        told = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout == "None False\n", variables


def test_with_them_spans_are_made_and_named_as_they_say() -> None:
    program = (
        "from celeriac_tasks import tracing\n"
        "tracing.start_tracing('celeriac-worker')\n"
        f"with tracing.span_of_run('x', {{}}, 'r', {THEIRS!r}): pass\n"
        "tracing.stop_tracing()\n"
    )
    environment = {name: value for name, value in os.environ.items() if "OTEL" not in name}
    for name, variables in {
        "celeriac-worker": WANTED,
        "desk": {**WANTED, "OTEL_SERVICE_NAME": "desk"},
    }.items():
        told = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        made = json.loads(told.stdout)
        assert made["context"]["trace_id"] == "0x" + THEIRS.split("-")[1]
        assert made["resource"]["attributes"]["service.name"] == name


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        (THEIRS, True),
        (THEIRS.upper(), False),
        (THEIRS + "-00", False),
        ("ff" + THEIRS[2:], False),
        ("00-" + "0" * 32 + THEIRS[35:], False),
        (THEIRS[:36] + "0" * 16 + "-01", False),
        ("", False),
        (None, False),
    ],
)
def test_a_traceparent_that_is_none_is_ignored(given: str | None, is_taken: bool) -> None:
    assert traceparent.checked(given) == (given if is_taken else None)
