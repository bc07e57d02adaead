"""The models of events: complete, and a contract that may grow."""

import re
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from celeriac import events
from celeriac.codec import JsonValue
from celeriac.reports import TERMINAL_EVENTS
from celeriac.states import EffectState, RunStatus
from tests.docs.pages import ROOT
from tests.histories import assert_event

FAMILIES = {type_.partition(".")[0] for type_ in events.event_types()}
WRITTEN = re.compile(
    rf"""['"]((?:{"|".join(FAMILIES)})\.[a-z_]+)['"]|(?:\bEvent|\[)\(\s*"([a-z_]+\.[a-z_]+)\""""
)
IN_THE_AUDIT_TRAIL = {
    "approval.shown",
    "budget.set",
    "budget.top_up",
    "call.execute",
    "memory.forget",
    "results.submit",
    "run.fork",
    "run.retry",
    "run.rollback",
    "run.start",
    "workspace.drift",
}
BY_STATE = {f"effect.{state}" for state in EffectState} | {f"run.{status}" for status in RunStatus}


def line(type_: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"run_id": "r", "seq": 1, "type": type_, "at": "2026-11-30T08:00:00Z", "data": data}


# features: 003-04
def test_every_type_that_the_code_writes_has_a_model_and_no_model_is_for_nothing() -> None:
    written = {
        found[1] or found[2]
        for source in ("storage", "tasks")
        for path in (ROOT / source).rglob("*.py")
        for found in WRITTEN.finditer(path.read_text())
    }

    assert written - IN_THE_AUDIT_TRAIL <= set(events.event_types())
    assert set(events.event_types()) <= written | BY_STATE
    assert set(events.event_types()) >= TERMINAL_EVENTS


def test_a_reader_of_the_schema_takes_what_a_later_runtime_adds() -> None:
    later = line("run.said", {"by": "alice", "mood": "good"})

    jsonschema.validate(later, events.json_schema())
    assert events.parse(later).data.by == "alice"


@pytest.mark.parametrize(
    "wrong",
    [
        line("run.said", {}),
        line("run.said", {"by": 7}),
        line("run.said", {"by": "alice", "v": 2}),
        line("run.sang", {"by": "alice"}),
        {**line("run.said", {"by": "alice"}), "seq": 0},
    ],
    ids=["a field missing", "another type", "another version", "no such event", "no seq"],
)
def test_what_is_no_event_of_this_version_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        events.parse(wrong)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, events.json_schema())


def test_a_field_that_no_model_knows_fails_the_check_of_histories() -> None:
    error: dict[str, JsonValue] = {"kind": "timeout", "message": "late"}
    known: dict[str, JsonValue] = {"call_id": "1.0", "tool": "pay", "error": error}

    assert_event({**line("effect.unknown", {})}, known)
    with pytest.raises(AssertionError):
        assert_event({**line("effect.unknown", {})}, {**known, "mood": "good"})
