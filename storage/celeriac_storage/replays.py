"""What is recorded of a run's model calls, and whether it is still what was recorded.

Nothing here writes. Each read needs the snapshot that `begin` makes of its transaction.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from celeriac.agent import hashes_of
from celeriac.codec import JsonValue
from celeriac.ids import RunId, TenantId, UserId
from celeriac.states import RunStatus
from celeriac_storage.requests import erased, unknown_run


@dataclass(frozen=True, slots=True)
class Asker:
    """The run whose model was asked."""

    run_id: RunId
    tenant_id: TenantId
    user_id: UserId
    agent: str
    status: RunStatus
    outcome: str | None
    message_count: int
    has_givers: bool  # it goes on with the conversation of others
    forgotten: int  # earlier runs of its thread that it was told of, and that are erased since


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One request to its model."""

    step: int
    attempt: int
    model: str
    message_count: int  # so many of the run's own messages had been said
    selection: Mapping[str, Any] | None
    prompt_hash: str | None
    tools_hash: str | None
    outcome: str
    error: JsonValue
    input_tokens: int
    output_tokens: int
    cost: Decimal | None
    started_at: datetime
    finished_at: datetime


def begin(connection: Connection, run_id: RunId) -> Asker:
    """The run. Needs a transaction that has read nothing yet: it is made one snapshot. Raises
    `UnknownRun`, and `Conflict` if what it worked with was erased."""
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    row: Any = connection.exec_driver_sql(
        """
        SELECT tenant_id, user_id, agent, status, outcome, message_count,
            history_until IS NOT NULL AS has_givers, erased_at, (
                SELECT count(*) FROM celeriac.runs AS earlier
                WHERE (earlier.tenant_id, earlier.thread_id) = (run.tenant_id, run.thread_id)
                    AND earlier.thread_position < run.thread_position
                    AND earlier.finished_at <= run.started_at AND earlier.status = 'completed'
                    AND earlier.kind <> 'rollback' AND earlier.erased_at IS NOT NULL
            ) AS forgotten
        FROM celeriac.runs AS run WHERE run_id = %s
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    if row.erased_at is not None:
        raise erased(run_id, row.erased_at)
    return Asker(
        run_id,
        row.tenant_id,
        row.user_id,
        row.agent,
        RunStatus(row.status),
        row.outcome,
        row.message_count,
        row.has_givers,
        row.forgotten,
    )


def recorded_calls(
    connection: Connection, run_id: RunId, step: int | None = None
) -> list[RecordedCall]:
    """All requests to the run's model, or those of one step, in order."""
    rows = connection.exec_driver_sql(
        """
        SELECT call.step, attempt, model, call.message_count, selection,
            coalesce(call.prompt_hash, run.prompt_hash), coalesce(call.tools_hash, run.tools_hash),
            call.outcome, call.error, input_tokens, output_tokens, cost, call.started_at,
            call.finished_at
        FROM celeriac.model_calls AS call JOIN celeriac.runs AS run USING (run_id)
        WHERE run_id = %s AND call.step = coalesce(%s::int, call.step)
        ORDER BY call.step, attempt
        """,
        (run_id, step),
    )
    return [RecordedCall(*row) for row in rows]


def definitions(
    connection: Connection, agent: str
) -> tuple[dict[str, str], dict[str, Sequence[Any]]]:
    """All instructions and all tools that workers have ever registered of the agent, by the hashes
    by which runs name them."""
    instructions: dict[str, str] = {}
    tools: dict[str, Sequence[Any]] = {}
    rows = connection.exec_driver_sql(
        "SELECT definition FROM celeriac.agents WHERE agent = %s", (agent,)
    )
    for (definition,) in rows:
        prompt_hash, tools_hash = hashes_of(definition)
        if "instructions" in definition:
            instructions[prompt_hash] = definition["instructions"]
        if "tools" in definition:
            tools[tools_hash] = definition["tools"]
    return instructions, tools


def readable(connection: Connection, run_ids: Collection[RunId]) -> set[RunId]:
    """Those of the runs whose messages are there and not erased."""
    rows = connection.exec_driver_sql(
        "SELECT run_id FROM celeriac.runs WHERE run_id = ANY (%s) AND erased_at IS NULL",
        (list(run_ids),),
    )
    return {RunId(row[0]) for row in rows}


def broken(connection: Connection, run_ids: Collection[RunId]) -> list[str]:
    """What is stored of the runs' messages and results and has not the hash that was recorded with
    it, in words."""
    rows = connection.exec_driver_sql(
        """
        SELECT format('message %%s of run %%s', position, run_id) FROM celeriac.messages
        WHERE run_id = ANY (%(runs)s)
            AND hash IS DISTINCT FROM sha256(convert_to(body::text, 'UTF8'))
        UNION ALL
        SELECT format('the result of call %%s of run %%s', call_id, run_id)
        FROM celeriac.effects LEFT JOIN celeriac.artifacts ON hash = result_artifact
        WHERE run_id = ANY (%(runs)s) AND (
            result_hash IS DISTINCT FROM sha256(convert_to(result::text, 'UTF8'))
            OR result_artifact IS DISTINCT FROM sha256(content))
        ORDER BY 1
        """,
        {"runs": list(run_ids)},
    )
    return [row[0] for row in rows]
