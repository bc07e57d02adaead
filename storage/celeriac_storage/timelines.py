"""What a run's page shows besides the run: its history, what its model wrote, what it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import CallId, RunId, TenantId, WorkerId
from celeriac.reports import Event, Wait
from celeriac.states import EffectKind, EffectState
from celeriac_storage.reading import read_wait

EVENTS_SHOWN = 400


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request to a model, answered or not."""

    step: int
    attempt: int
    model: str
    outcome: str
    input_tokens: int
    output_tokens: int
    cost: Decimal | None  # None: not known


@dataclass(frozen=True, slots=True)
class Process:
    """A worker as people find it on its machine."""

    hostname: str
    pid: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """As of the moment of the transaction."""

    events: Sequence[Event]  # the latest
    last_seq: int
    is_whole: bool  # whether these are all events
    step_started_at: datetime | None  # while a worker holds the run
    wait: Wait
    model_calls: Sequence[ModelCall]
    texts: Mapping[int, Sequence[str]]  # by step: what its model wrote besides calls
    workers: Mapping[WorkerId, Process]
    input_tokens: int
    output_tokens: int


def read_timeline(connection: Connection, run_id: RunId, limit: int = EVENTS_SHOWN) -> Timeline:
    """At most `limit` events. The run exists; in the transaction of `run_report.read_run` all is of
    the same moment."""
    last_seq, started_at, input_tokens, output_tokens = connection.exec_driver_sql(
        "SELECT last_event_seq, step_started_at, input_tokens_used, output_tokens_used"
        " FROM celeriac.runs WHERE run_id = %s",
        (run_id,),
    ).one()
    rows = connection.exec_driver_sql(
        "SELECT seq, type, at, data FROM celeriac.events WHERE run_id = %s"
        " ORDER BY seq DESC LIMIT %s",
        (run_id, limit),
    )
    events = [Event(run_id, *row) for row in rows][::-1]
    return Timeline(
        events,
        last_seq,
        not events or len(events) == last_seq,
        started_at,
        read_wait(connection, run_id),
        _model_calls(connection, run_id),
        _texts(connection, run_id),
        _workers(connection, run_id),
        input_tokens,
        output_tokens,
    )


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A call of which nobody knows what came, or that its target does not show."""

    run_id: RunId
    call_id: CallId
    agent: str
    user_id: str
    tool: str
    kind: EffectKind
    state: EffectState
    arguments: Any
    key: str
    error: Any
    since: datetime  # of the last that is known about it


def list_unsettled(
    connection: Connection, tenant_id: TenantId, limit: int = 100
) -> list[Unsettled]:
    """Those of the tenant, the oldest run first."""
    rows: Any = connection.exec_driver_sql(
        """
        SELECT run.run_id, call_id, agent, user_id, tool, effect.kind, state, arguments,
            concat_ws(':', tenant_id, coalesce(rolls_back_run, run.run_id),
                coalesce(rolls_back, call_id), CASE WHEN rolls_back IS NOT NULL THEN 'undo' END),
            effect.error, coalesce((
                SELECT max(at) FROM celeriac.effect_attempts AS attempt
                WHERE (attempt.run_id, attempt.call_id) = (run.run_id, effect.call_id)
            ), planned_at)
        FROM celeriac.effects AS effect JOIN celeriac.runs AS run USING (run_id)
        WHERE state IN ('unknown', 'known_bad') AND tenant_id = %s
        ORDER BY run.created_at, effect.step, call_index LIMIT %s
        """,
        (tenant_id, limit),
    )
    return [
        Unsettled(
            run_id, call_id, agent, user_id, tool, EffectKind(kind), EffectState(state), arguments,
            key, error, since,
        )
        for (
            run_id, call_id, agent, user_id, tool, kind, state, arguments, key, error, since,
        ) in rows
    ]  # fmt: skip


def _model_calls(connection: Connection, run_id: RunId) -> list[ModelCall]:
    rows = connection.exec_driver_sql(
        "SELECT step, attempt, model, outcome, input_tokens, output_tokens, cost"
        " FROM celeriac.model_calls WHERE run_id = %s ORDER BY step, attempt",
        (run_id,),
    )
    return [ModelCall(*row) for row in rows]


def _texts(connection: Connection, run_id: RunId) -> dict[int, list[str]]:
    """A step's messages are those that the log had not before it."""
    rows: Any = connection.exec_driver_sql(
        """
        SELECT step, part ->> 'content'
        FROM (
            SELECT step, kind, message_count,
                lag(message_count, 1, 0) OVER (ORDER BY step) AS before
            FROM celeriac.checkpoints WHERE run_id = %(run_id)s
        ) AS checkpoint
        JOIN celeriac.messages AS message
            ON message.run_id = %(run_id)s AND position >= before AND position < message_count
        CROSS JOIN LATERAL jsonb_array_elements(
            CASE jsonb_typeof(body -> 'parts') WHEN 'array' THEN body -> 'parts' END) AS part
        WHERE checkpoint.kind = 'think' AND body ->> 'kind' = 'response'
            AND part ->> 'part_kind' IS NULL AND jsonb_typeof(part -> 'content') = 'string'
            AND part ->> 'content' <> ''
        ORDER BY step, position
        """,
        {"run_id": run_id},
    )
    found: dict[int, list[str]] = {}
    for step, text in rows:
        found.setdefault(step, []).append(text)
    return found


def _workers(connection: Connection, run_id: RunId) -> dict[WorkerId, Process]:
    rows = connection.exec_driver_sql(
        """
        SELECT worker_id, hostname, pid FROM celeriac.workers WHERE worker_id IN (
            SELECT worker_id FROM celeriac.checkpoints WHERE run_id = %(run_id)s
            UNION SELECT worker_id FROM celeriac.runs WHERE run_id = %(run_id)s
            UNION SELECT data ->> 'worker_id' FROM celeriac.events
                WHERE run_id = %(run_id)s AND data ? 'worker_id'
        )
        """,
        {"run_id": run_id},
    )
    return {WorkerId(row[0]): Process(row[1], row[2]) for row in rows}
