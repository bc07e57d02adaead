"""What people look at: runs, their histories, and workers. Nothing here locks or changes a row."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Text, cast, func, select, tuple_
from sqlalchemy.exc import DBAPIError

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput, UnknownThread
from celeriac.ids import (
    CallId,
    RunId,
    TenantId,
    ThreadId,
    UserId,
    WorkerId,
    effect_key,
    undo_key,
)
from celeriac.reports import (
    Call,
    Child,
    Contract,
    Effect,
    Event,
    Run,
    RunLine,
    Step,
    Thread,
    Use,
    Wait,
    Worker,
)
from celeriac.states import EffectKind, EffectState, Phase, RunKind, RunStatus, StepKind
from celeriac_storage import approvals, timers, workflow_log
from celeriac_storage.database import sqlstate
from celeriac_storage.requests import unknown_run
from celeriac_storage.tables import runs
from celeriac_storage.threads import HOLDS_THREAD
from celeriac_storage.workers import IS_ALIVE

EVENTS_PER_READ = 1000
DEPARTED_WORKERS_SHOWN = 100
CHILDREN_SHOWN = 1000
SEARCH_SECONDS = 5
_QUERY_CANCELED = "57014"

_LINE = [each.name for each in fields(RunLine)]
LINE = ", ".join(_LINE)
"""The columns of a run in a list."""


def read_run(connection: Connection, run_id: RunId) -> Run:
    """The run, its steps and its effects as of one moment. Raises `UnknownRun`.

    Needs a transaction that has read nothing yet: it is made one snapshot, so that no step shows
    that the run's own row does not know of.
    """
    connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    row = connection.exec_driver_sql(
        """
        SELECT run_id, thread_id, user_id, agent, status, phase, outcome, step, epoch, worker_id,
            deaths, input, result, error, created_at, finished_at, tenant_id, erased_at,
            pruned_at, kind, parent_run_id, ARRAY(
                SELECT run_id FROM celeriac.runs AS rollback
                WHERE rollback.parent_run_id = run.run_id AND kind = 'rollback'
                ORDER BY created_at, run_id
            ), parent_call_id, deadline_at, (
                SELECT due_at FROM celeriac.timers
                WHERE timers.run_id = run.run_id AND timer_id = %s
            ), contract, forked_from, forked_step, ARRAY(
                SELECT run_id FROM celeriac.runs AS fork WHERE fork.forked_from = run.run_id
                ORDER BY created_at, run_id
            )
        FROM celeriac.runs AS run WHERE run_id = %s
        """,
        (timers.START, run_id),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    (
        *shown, created_at, finished_at, tenant_id, erased_at, pruned_at, run_kind, parent,
        rollbacks, parent_call, deadline_at, start_at, contract, forked_from, forked_step, forks,
    ) = row  # fmt: skip
    (
        _, thread_id, user_id, agent, status, phase, outcome, step, epoch, worker_id, deaths,
        input_, result, error,
    ) = shown  # fmt: skip
    steps = connection.exec_driver_sql(
        "SELECT step, kind, worker_id, started_at, committed_at FROM celeriac.checkpoints"
        " WHERE run_id = %s ORDER BY step",
        (run_id,),
    )
    effects = connection.exec_driver_sql(
        """
        SELECT effect.call_id, effect.tool, effect.kind, effect.state, effect.attempt,
            effect.rolls_back_run, effect.rolls_back, undo.run_id, undo.call_id,
            effect.arguments, effect.result, encode(effect.result_artifact, 'hex'), effect.error
        FROM celeriac.effects AS effect LEFT JOIN celeriac.effects AS undo
            ON (undo.rolls_back_run, undo.rolls_back) = (effect.run_id, effect.call_id)
                AND undo.rolls_back_stands
        WHERE effect.run_id = %s ORDER BY effect.step, effect.call_index
        """,
        (run_id,),
    )
    children = _children(connection, run_id)
    use = use_of(connection, run_id)
    return Run(
        run_id,
        thread_id,
        user_id,
        agent,
        RunStatus(status),
        None if phase is None else Phase(phase),
        outcome,
        step,
        epoch,
        worker_id,
        deaths,
        input_,
        result,
        error,
        created_at,
        finished_at,
        [Step(row[0], StepKind(row[1]), row[2], row[3], row[4]) for row in steps],
        [
            Effect(
                CallId(call_id),
                tool,
                EffectKind(kind),
                EffectState(state),
                attempt,
                effect_key(tenant_id, run_id, call_id)
                if of_call is None
                else undo_key(effect_key(tenant_id, of_run, of_call)),
                None if of_call is None else Call(of_run, of_call),
                None if by_call is None else Call(by_run, by_call),
                *values,
            )
            for (
                call_id,
                tool,
                kind,
                state,
                attempt,
                of_run,
                of_call,
                by_run,
                by_call,
                *values,
            ) in effects
        ],
        approvals.of_run(connection, run_id),
        run_kind,
        parent if run_kind == "rollback" else None,
        rollbacks,
        None if parent_call is None else Call(parent, parent_call),
        children,
        workflow_log.read_log(connection, run_id) if run_kind == RunKind.WORKFLOW else [],
        start_at,
        deadline_at,
        None if contract is None else _contract(connection, run_id, contract),
        use,
        use_of(connection, run_id, with_below=True) if children else use,
        erased_at,
        pruned_at,
        forked_from,
        forked_step,
        forks,
    )


def _contract(connection: Connection, run_id: RunId, contract: dict[str, JsonValue]) -> Contract:
    row: Any = connection.exec_driver_sql(
        """
        SELECT (array_agg(type ORDER BY seq DESC))[1], (array_agg(data ORDER BY seq DESC))[1],
            count(*) FILTER (WHERE type = 'contract.refused')
        FROM celeriac.events
        WHERE run_id = %s AND type IN ('contract.met', 'contract.refused', 'contract.unmet')
        """,
        (run_id,),
    ).one()
    type_, data, corrections = row
    settings = {"enforcement", "max_corrections"}
    return Contract(
        str(contract["enforcement"]),
        {name: value for name, value in contract.items() if name not in settings and value},
        None if type_ is None else type_ == "contract.met",
        [] if data is None else data.get("unmet", []),
        corrections,
        contract["max_corrections"],  # type: ignore[arg-type]  # a number, as it was checked
    )


def _children(connection: Connection, run_id: RunId) -> list[Child]:
    """The runs below this one, each after the one that started it."""
    rows: Sequence[Any] = connection.exec_driver_sql(
        """
        WITH RECURSIVE below AS (
            SELECT child.*, ARRAY[(created_at, run_id)] AS path FROM celeriac.runs AS child
            WHERE parent_run_id = %s AND parent_call_id IS NOT NULL AND kind <> 'activity'
            UNION ALL
            SELECT child.*, path || (child.created_at, child.run_id)
            FROM celeriac.runs AS child JOIN below ON child.parent_run_id = below.run_id
            WHERE child.parent_call_id IS NOT NULL AND child.kind <> 'activity'
        )
        SELECT run_id, parent_run_id, parent_call_id, agent, status, phase, outcome,
            history_until IS NOT NULL, created_at, finished_at
        FROM below ORDER BY path LIMIT %s
        """,
        (run_id, CHILDREN_SHOWN),
    ).fetchall()
    return [
        Child(
            RunId(child),
            Call(RunId(parent), CallId(call)),
            agent,
            RunStatus(status),
            None if phase is None else Phase(phase),
            outcome,
            *rest,
        )
        for child, parent, call, agent, status, phase, outcome, *rest in rows
    ]


def list_runs(
    connection: Connection,
    *,
    tenant_id: TenantId | None = None,
    user_id: UserId | None = None,
    thread_id: ThreadId | None = None,
    status: RunStatus | None = None,
    agent: str | None = None,
    outcome: str | None = None,
    search: str | None = None,
    with_activities: bool = False,
    before: tuple[datetime, RunId] | None = None,
    limit: int = 50,
) -> list[RunLine]:
    """Runs, newest first: those of that tenant, user, thread, status, agent and outcome, each if
    given, and that were created before the run `before`, given by its time and id. The runs of
    workflows' activities are among them only `with_activities`, and where they need a person: a
    workflow is `paused` meanwhile, so nothing else of that status would stand for them.

    `search` is the begin of a run's id, or any text of its input, in capitals or not. It reads the
    inputs, so it takes as long as there are runs. Needs a transaction, and raises `InvalidInput`
    after `SEARCH_SECONDS`.
    """
    if search is not None:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{SEARCH_SECONDS}s'")
    query = select(*(runs.c[column] for column in _LINE))
    if not with_activities and status is not RunStatus.NEEDS_ATTENTION:
        query = query.where(runs.c.kind != RunKind.ACTIVITY.value)
    if status is not None:
        query = query.where(runs.c.status == status.value)
    if agent is not None:
        query = query.where(runs.c.agent == agent)
    if outcome is not None:
        query = query.where(runs.c.outcome == outcome)
    if search is not None:
        query = query.where(
            runs.c.run_id.startswith(search, autoescape=True)
            | (func.strpos(func.lower(cast(runs.c.input, Text)), search.lower()) > 0)
        )
    if tenant_id is not None:
        query = query.where(runs.c.tenant_id == tenant_id)
    if user_id is not None:
        query = query.where(runs.c.user_id == user_id)
    if thread_id is not None:
        query = query.where(runs.c.thread_id == thread_id)
    if before is not None:
        query = query.where(tuple_(runs.c.created_at, runs.c.run_id) < before)
    try:
        rows = connection.execute(
            query.order_by(runs.c.created_at.desc(), runs.c.run_id.desc()).limit(limit)
        )
    except DBAPIError as error:
        if search is None or sqlstate(error) != _QUERY_CANCELED:
            raise
        raise InvalidInput(
            f"the search for {search!r} was given up after {SEARCH_SECONDS} s: narrow it by a "
            "status, an agent, a user or a thread"
        ) from error
    return [run_line(row) for row in rows]


def run_line(row: Sequence[Any]) -> RunLine:
    """A row of the columns `LINE`."""
    run_id, thread_id, user_id, agent, status, phase, outcome, step, epoch, worker_id, *rest = row
    return RunLine(
        RunId(run_id),
        ThreadId(thread_id),
        UserId(user_id),
        agent,
        RunStatus(status),
        None if phase is None else Phase(phase),
        outcome,
        step,
        epoch,
        None if worker_id is None else WorkerId(worker_id),
        *rest,
    )


def read_thread(
    connection: Connection, tenant_id: TenantId, thread_id: ThreadId, limit: int = 50
) -> Thread:
    """The thread and its latest runs. Raises `UnknownThread`."""
    row = connection.exec_driver_sql(
        "SELECT user_id, created_at FROM celeriac.threads WHERE tenant_id = %s AND thread_id = %s",
        (tenant_id, thread_id),
    ).fetchone()
    if row is None:
        raise unknown_thread(thread_id)
    lines = list_runs(connection, tenant_id=tenant_id, thread_id=thread_id, limit=limit)
    return Thread(thread_id, UserId(row[0]), row[1], lines)


def unknown_thread(thread_id: ThreadId) -> UnknownThread:
    return UnknownThread(f"there is no thread {thread_id}; it begins with its first run")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run is: all that has to be asked again and again while somebody waits for it."""

    status: RunStatus
    step: int
    epoch: int
    last_event_seq: int


def read_position(connection: Connection, run_id: RunId) -> Position:
    """Where the run stands. Raises `UnknownRun`."""
    row = connection.exec_driver_sql(
        "SELECT status, step, epoch, last_event_seq FROM celeriac.runs WHERE run_id = %s", (run_id,)
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    return Position(RunStatus(row[0]), row[1], row[2], row[3])


def list_events(
    connection: Connection, run_id: RunId, after: int = 0, limit: int = EVENTS_PER_READ
) -> list[Event]:
    """The run's next events after `after`, at most `limit` of them.

    A cursor on `seq` misses nothing: it is given out under the run's row lock, so no event with a
    lower one commits later.
    """
    rows = connection.exec_driver_sql(
        "SELECT seq, type, at, data FROM celeriac.events"
        " WHERE run_id = %s AND seq > %s ORDER BY seq LIMIT %s",
        (run_id, after, limit),
    )
    return [Event(run_id, seq, type_, at, data) for seq, type_, at, data in rows]


def list_workers(connection: Connection, tenant_id: TenantId | None = None) -> list[Worker]:
    """Workers that live, and the ones that left last, each with the runs it holds, those of that
    tenant if one is given; newest first."""
    rows: Sequence[Any] = connection.exec_driver_sql(
        f"""
        SELECT worker_id, hostname, pid, {IS_ALIVE} AS alive, ARRAY(
            SELECT run_id FROM celeriac.runs
            WHERE runs.worker_id = workers.worker_id AND status = 'running'
                AND tenant_id = coalesce(%s::text, tenant_id)
            ORDER BY run_id
        )
        FROM celeriac.workers
        WHERE {IS_ALIVE} OR worker_id IN (
            SELECT worker_id FROM celeriac.workers WHERE NOT {IS_ALIVE}
            ORDER BY started_at DESC LIMIT %s
        )
        ORDER BY alive DESC, started_at DESC
        """,
        (tenant_id, DEPARTED_WORKERS_SHOWN),
    ).fetchall()
    return [
        Worker(WorkerId(worker_id), hostname, pid, alive, [RunId(run) for run in running])
        for worker_id, hostname, pid, alive, running in rows
    ]


@dataclass(frozen=True, slots=True)
class KnownAgent:
    """An agent as workers registered it, and those of them that live."""

    agent: str
    definition: dict[str, JsonValue]  # the latest
    workers: Sequence[WorkerId]
    queues: Sequence[str]  # that those workers serve


def list_known_agents(connection: Connection) -> list[KnownAgent]:
    """Every agent that some worker ever registered, by name."""
    rows: Sequence[Any] = connection.exec_driver_sql(
        f"""
        SELECT agent, definition,
            ARRAY(
                SELECT worker_id FROM celeriac.workers
                WHERE agent = ANY (agents) AND {IS_ALIVE} ORDER BY worker_id
            ),
            ARRAY(
                SELECT DISTINCT queue FROM celeriac.workers, unnest(queues) AS queue
                WHERE agent = ANY (agents) AND {IS_ALIVE} ORDER BY queue
            )
        FROM (
            SELECT DISTINCT ON (agent) agent, definition FROM celeriac.agents
            ORDER BY agent, registered_at DESC
        ) AS registered
        ORDER BY agent
        """
    ).fetchall()
    return [KnownAgent(*row) for row in rows]


def read_wait(connection: Connection, run_id: RunId) -> Wait:
    """What the run waits for, in facts; words are the reader's. Raises `UnknownRun`."""
    row: Any = connection.exec_driver_sql(
        f"""
        SELECT phase, queue, coalesce(wake_at, (
                SELECT min(due_at) FROM celeriac.timers
                WHERE timers.run_id = waiting.run_id AND fired_at IS NULL
            )), CASE WHEN phase = 'waiting_thread' THEN (
                SELECT run_id FROM celeriac.runs AS active
                WHERE active.tenant_id = waiting.tenant_id
                    AND active.thread_id = waiting.thread_id AND {HOLDS_THREAD}
                LIMIT 1
            ) END, cancel_requested_at IS NOT NULL, ARRAY(
                SELECT call_id FROM celeriac.effects
                WHERE effects.run_id = waiting.run_id AND state = 'unknown'
                ORDER BY step, call_index
            ), last_event_seq
        FROM celeriac.runs AS waiting WHERE run_id = %s
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    phase, queue, wake_at, behind, is_cancel_requested, unknown, last_event_seq = row
    return Wait(
        None if phase is None else Phase(phase),
        queue,
        wake_at,
        behind,
        is_cancel_requested,
        unknown,
        last_event_seq,
    )


def use_of(connection: Connection, run_id: RunId, *, with_below: bool = False) -> Use:
    """What the run's model calls took, or `with_below` those of the runs below it as well, whenever
    they have ended or will: its own row is not written again once it has ended itself."""
    # Of a pruned run there are no model calls any more.
    input_tokens, output_tokens, usd, unpriced_calls = connection.exec_driver_sql(
        """
        WITH RECURSIVE family AS (
            SELECT * FROM celeriac.runs WHERE run_id = %(run_id)s
            UNION ALL
            SELECT child.* FROM celeriac.runs AS child JOIN family
                ON child.parent_run_id = family.run_id
            WHERE %(with_below)s AND child.parent_call_id IS NOT NULL AND child.kind <> 'activity'
        )
        SELECT sum(input_tokens_used), sum(output_tokens_used), sum(pruned_usd + usd),
            sum(pruned_unpriced_calls + unpriced_calls)
        FROM family, LATERAL (
            SELECT coalesce(sum(cost), 0) AS usd,
                count(*) FILTER (WHERE cost IS NULL AND outcome = 'answered') AS unpriced_calls
            FROM celeriac.model_calls WHERE model_calls.run_id = family.run_id
        ) AS called
        """,
        {"run_id": run_id, "with_below": with_below},
    ).one()
    return Use(int(input_tokens), int(output_tokens), usd, int(unpriced_calls))
