"""The conversation as it is stored: message rows, with tool results joined in from their
effects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.ids import CallId, RunId
from celeriac.memory.origin import Returned, Said, Seen
from celeriac_storage.claims import Claim
from celeriac_storage.database import fetch_rows


@dataclass(frozen=True, slots=True)
class StoredResult:
    """What the model is told of one tool call."""

    call_id: str
    provider_call_id: str
    tool: str
    result: JsonValue
    error: dict[str, JsonValue] | None


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message; of role `results`, the body only names the calls, of its own run or of one that
    this run is a fork of, and `results` has them."""

    run_id: RunId
    position: int
    role: str
    body: dict[str, JsonValue]
    results: Sequence[StoredResult]


MOST_SEEN_CHARACTERS = 200_000
"""Of one result: what is further down in a longer one is not compared with what is remembered."""

_RUNS_OF_THREAD = """
    SELECT run_id, thread_position, parent_run_id FROM celeriac.runs
    WHERE run_id = %(run_id)s OR run_id = ANY (%(origins)s)
        OR tenant_id = %(tenant_id)s AND thread_id = %(thread_id)s
        AND thread_position < %(thread_position)s AND kind <> 'rollback'
"""

_MESSAGES = """
SELECT message.run_id, message.position, message.role, message.body,
    CASE WHEN message.role = 'results' THEN (
    SELECT jsonb_agg(jsonb_build_array(effect.call_id, effect.provider_call_id, effect.tool,
        coalesce(convert_from(artifact.content, 'UTF8')::jsonb, effect.result),
        effect.error) ORDER BY effect.step, effect.call_index)
    FROM celeriac.effects AS effect
    LEFT JOIN celeriac.artifacts AS artifact ON artifact.hash = effect.result_artifact
    WHERE effect.run_id = coalesce(message.body ->> 'run', message.run_id)
        AND effect.call_id IN (SELECT jsonb_array_elements_text(message.body -> 'calls'))
) END
FROM celeriac.messages AS message
"""


def load_messages(
    connection: Connection, run_id: RunId, from_position: int = 0
) -> list[StoredMessage]:
    """The run's own messages from `from_position` on, in order."""
    rows = fetch_rows(
        connection,
        _MESSAGES + "WHERE message.run_id = %(run_id)s AND message.position >= %(from)s ORDER BY 2",
        {"run_id": run_id, "from": from_position},
    )
    return [_message(row) for row in rows]


def load_input(connection: Connection, run_id: RunId) -> JsonValue:
    """What the run was given when it was started; a workflow when it last began as new."""
    query = (
        "SELECT CASE WHEN generation > 0 THEN generation_input ELSE input END"
        " FROM celeriac.runs WHERE run_id = %s"
    )
    value: JsonValue = connection.exec_driver_sql(query, (run_id,)).scalar_one()
    return value


def load_ranges(
    connection: Connection, ranges: Sequence[tuple[RunId, int, int]]
) -> list[StoredMessage]:
    """The messages from the first position to before the second of each run, in this order."""
    runs, begins, ends = zip(*ranges, strict=True)
    rows = fetch_rows(
        connection,
        _MESSAGES
        + """
        JOIN unnest(%(runs)s::text[], %(begins)s::int[], %(ends)s::int[]) WITH ORDINALITY
            AS wanted (run_id, begin_at, end_at, number)
            ON message.run_id = wanted.run_id AND message.position >= wanted.begin_at
                AND message.position < wanted.end_at
        ORDER BY wanted.number, message.position
        """,
        {"runs": list(runs), "begins": list(begins), "ends": list(ends)},
    )
    return [_message(row) for row in rows]


def last_answer(connection: Connection, run_id: RunId) -> int:
    """The position of the model's last answer: how many messages the run had before it."""
    position: int = connection.exec_driver_sql(
        "SELECT max(position) FROM celeriac.messages WHERE run_id = %s AND role = 'assistant'",
        (run_id,),
    ).scalar_one()
    return position


@dataclass(frozen=True, slots=True)
class Giver:
    """A run whose conversation another one goes on with."""

    run_id: RunId
    until: int  # so many of its messages had been said by then
    is_origin: bool  # the other is a fork of it; else it has handed the conversation over


def givers(connection: Connection, run_id: RunId) -> list[Giver]:
    """The runs whose conversation this one goes on with, the last one first; mostly none."""
    rows = connection.exec_driver_sql(
        """
        WITH RECURSIVE link AS (
            SELECT coalesce(forked_from, parent_run_id) AS giver, history_until,
                forked_from IS NOT NULL AS is_origin, 1 AS number
            FROM celeriac.runs WHERE run_id = %s
            UNION ALL
            SELECT coalesce(run.forked_from, run.parent_run_id), run.history_until,
                run.forked_from IS NOT NULL, number + 1
            FROM link JOIN celeriac.runs AS run ON run.run_id = link.giver
            WHERE link.history_until IS NOT NULL
        )
        SELECT giver, history_until, is_origin FROM link WHERE history_until IS NOT NULL
        ORDER BY number
        """,
        (run_id,),
    )
    return [Giver(RunId(row[0]), row[1], row[2]) for row in rows]


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """A run of the same thread that its later runs are told of."""

    run_id: RunId
    thread_position: int
    message_count: int
    is_fork: bool
    begins_thread: bool  # a fork of a run of another thread, whose conversation comes before


def earlier_runs(
    connection: Connection, run_id: RunId, before: int | None, limit: int
) -> list[EarlierRun]:
    """The runs of the run's thread that are before it, or before position `before`, the latest
    first. Messages are read where they are, never copied.

    Only completed root runs that are not erased: another one may have stopped between a tool call
    and its result, and providers refuse a conversation with an unanswered call. And only what had
    ended when this run began: an earlier one may have waited for a person meanwhile, and what a
    model is shown must not depend on when and where it was read.
    """
    rows = connection.exec_driver_sql(
        """
        SELECT run_id, thread_position, message_count, forked_from IS NOT NULL, EXISTS (
            SELECT FROM celeriac.runs AS origin
            WHERE origin.run_id = earlier.forked_from AND origin.thread_id <> earlier.thread_id)
        FROM celeriac.runs AS earlier JOIN (
            SELECT tenant_id, thread_id, thread_position AS position, started_at AS began_at
            FROM celeriac.runs WHERE run_id = %s
        ) AS this USING (tenant_id, thread_id)
        WHERE thread_position < coalesce(%s::int, position) AND finished_at <= began_at
            AND status = 'completed' AND kind <> 'rollback' AND erased_at IS NULL
        ORDER BY thread_position DESC LIMIT %s
        """,
        (run_id, before, limit),
    )
    return [EarlierRun(RunId(row[0]), *row[1:]) for row in rows]


def latest_prompt(connection: Connection, run_id: RunId, before: int) -> int | None:
    """The position of the latest message before `before` that a user said in the run."""
    row: Any = connection.exec_driver_sql(
        "SELECT max(position) FROM celeriac.messages"
        " WHERE run_id = %s AND role = 'user' AND position < %s",
        (run_id, before),
    ).fetchone()
    return None if row is None else row[0]


def load_seen(connection: Connection, claim: Claim) -> Seen:
    """What the user has said, and what tools have returned, in the run, in those that it is a fork
    of, and in its thread before it."""
    parameters = {
        "origins": [each.run_id for each in givers(connection, claim.run_id) if each.is_origin],
        "run_id": claim.run_id,
        "tenant_id": claim.tenant_id,
        "thread_id": claim.thread_id,
        "thread_position": claim.thread_position,
    }
    said: Any = connection.exec_driver_sql(
        f"""
        SELECT part ->> 'content', CASE WHEN run_id = %(run_id)s THEN position END
        FROM celeriac.messages JOIN ({_RUNS_OF_THREAD}) AS run USING (run_id),
            jsonb_array_elements(body -> 'parts') AS part
        -- What opens a child is its parent's model speaking, and no user.
        WHERE role = 'user' AND part ->> 'content' IS NOT NULL AND parent_run_id IS NULL
        ORDER BY run.thread_position NULLS LAST, position
        """,
        parameters,
    )
    returned: Any = connection.exec_driver_sql(
        f"""
        SELECT left(coalesce(convert_from(artifact.content, 'UTF8'), effect.result::text),
            %(most)s), CASE WHEN run_id = %(run_id)s THEN call_id END
        FROM celeriac.effects AS effect JOIN ({_RUNS_OF_THREAD}) AS run USING (run_id)
        LEFT JOIN celeriac.artifacts AS artifact ON artifact.hash = effect.result_artifact
        WHERE effect.state = 'committed'
            AND effect.tool NOT IN ('remember', 'forget', 'forget_everything')
            AND (effect.result IS NOT NULL OR effect.result_artifact IS NOT NULL)
        ORDER BY run.thread_position NULLS LAST, effect.step, effect.call_index
        """,
        {**parameters, "most": MOST_SEEN_CHARACTERS},
    )
    return Seen(
        [Said(text, position) for text, position in said],
        [
            Returned(text, None if call_id is None else CallId(call_id))
            for text, call_id in returned
        ],
    )


def _message(row: Sequence[object]) -> StoredMessage:
    run_id, position, role, body, results = row
    assert isinstance(run_id, str)
    assert isinstance(position, int)
    assert isinstance(role, str)
    assert isinstance(body, dict), f"message {position} was erased"
    return StoredMessage(
        RunId(run_id),
        position,
        role,
        body,
        [StoredResult(*result) for result in results] if isinstance(results, list) else [],
    )
