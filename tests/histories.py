"""Every line of a history is of a type that has a model, and says what the model says."""

import psycopg
from pydantic import ValidationError

from celeriac import events
from celeriac.codec import JsonValue, loads
from celeriac_storage.database import libpq_url


def assert_documented(database_url: str) -> None:
    """Hold all events that a test has left in its database against the models of `events`."""
    with psycopg.connect(libpq_url(database_url), connect_timeout=5) as connection:
        rows = connection.execute(
            "SELECT run_id, seq, type, at, data::text FROM celeriac.events ORDER BY run_id, seq"
        ).fetchall()
    for run_id, seq, type_, at, data in rows:
        assert_event({"run_id": run_id, "seq": seq, "type": type_, "at": at}, loads(data))


def assert_event(line: dict[str, object], data: JsonValue) -> None:
    """The event fits its model, and the model knows all of it."""
    try:
        event = events.parse({**line, "data": data})
    except ValidationError as error:
        raise AssertionError(f"the event {line} with {data} has no model: {error}") from None
    # What a model does not know, it leaves out.
    assert event.data.model_dump(mode="json", exclude_unset=True) == data, line
