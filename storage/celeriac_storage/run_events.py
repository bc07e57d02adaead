"""Events of a run that are written outside of its steps. The caller has locked the run."""

from collections.abc import Sequence

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import RunId
from celeriac_storage import news


def append(
    connection: Connection,
    run_id: RunId,
    events: Sequence[tuple[str, dict[str, JsonValue]]],
    *,
    is_request: bool,
) -> None:
    """Append events, each a type and its data.

    With `is_request` the step in progress learns of them before it commits: it must then look at
    the run's calls again.
    """
    connection.exec_driver_sql(
        """
        WITH run AS (
            UPDATE celeriac.runs SET last_event_seq = last_event_seq + %(count)s,
                request_version = request_version + %(is_request)s::int
            WHERE run_id = %(run_id)s
            RETURNING run_id, last_event_seq
        )
        INSERT INTO celeriac.events (run_id, seq, type, data)
        SELECT run_id, last_event_seq - %(count)s + entry.number,
            entry.value ->> 0, entry.value -> 1
        FROM run, jsonb_array_elements(%(events)s::jsonb) WITH ORDINALITY AS entry (value, number)
        """,
        {
            "run_id": run_id,
            "count": len(events),
            "is_request": is_request,
            "events": dumps([[type_, data] for type_, data in events]),
        },
    )
    news.add(connection, run_id)
