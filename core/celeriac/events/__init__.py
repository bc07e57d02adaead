"""The events of a run, one model for each type: what a reader of its history may rely on.

The writers write plain types and data (`step_record.Event`); tests hold every row that they leave
against these models, so that a step pays nothing for them. `docs/events.md` is made from here.

Within a version, fields are only added: ignore what you do not know. A change that would break a
reader makes a new version, which the rows then carry as `v` in `data`; a row without one is version
1.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, cast, get_args

from pydantic import TypeAdapter, ValidationError

from celeriac import reports
from celeriac.events.types import AnyEvent, RunEvent

VERSION = 1
"""Of this catalogue: the highest `v` of any type."""


def event_types() -> dict[str, type[RunEvent[Any]]]:
    """The model of each type that the runtime writes."""
    models = get_args(get_args(AnyEvent)[0])
    return {get_args(model.model_fields["type"].annotation)[0]: model for model in models}


def parse(event: Mapping[str, Any]) -> RunEvent[Any]:
    """The event of `{run_id, seq, type, at, data}` as JSON has it. Raises pydantic's
    `ValidationError` for a type that is not known here: skip what a newer runtime may write."""
    return _adapter().validate_python(event)


def known(event: reports.Event) -> RunEvent[Any] | None:
    """The event as the model of its type; None for what a newer runtime has written."""
    try:
        return parse(cast(dict[str, Any], reports.to_json(event)))
    except ValidationError:
        return None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of an event, for `celeriac events --schema`."""
    schema = _adapter().json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Celeriac run event, version {VERSION}",
        **schema,
    }


@cache
def _adapter() -> TypeAdapter[AnyEvent]:
    return TypeAdapter(AnyEvent)
