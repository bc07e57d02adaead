"""A run with all that came of it so far, as `celeriac show` prints it. Nothing here locks or
changes a row.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.ids import CallId, RunId, effect_key, undo_key
from celeriac.reports import Call, Child, Contract, Effect, Run, Step, Use
from celeriac.states import EffectKind, EffectState, Phase, RunKind, RunStatus, StepKind
from celeriac_storage import approvals, timers, workflow_log
from celeriac_storage.requests import unknown_run

CHILDREN_SHOWN = 1000


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
