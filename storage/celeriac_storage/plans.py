"""Plans as they were started, and how far each has come.

A plan's row never changes and says nothing of progress: that is the log of its run, whose lines are
labelled by step.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.errors import InvalidInput
from celeriac.ids import RunId
from celeriac.plan import Plan, graph
from celeriac.plan.log import refused_name
from celeriac.plan.report import PlanReport
from celeriac.plan.standing import Line, nodes
from celeriac.states import RunStatus
from celeriac.workflows.entry import EntryKind
from celeriac_storage.requests import erased, unknown_run


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """The plan of a run, and which runs stand before and after that."""

    run_id: RunId
    status: RunStatus
    version: int
    hash: str
    body: JsonValue
    continues: RunId | None
    continued_by: RunId | None
    created_at: datetime


def read(connection: Connection, run_id: RunId) -> StoredPlan:
    """The plan of the run. Raises `UnknownRun`; `InvalidInput` if it executes none; `Conflict` if
    it was erased."""
    row: Any = connection.exec_driver_sql(
        """
        SELECT run.status, run.erased_at, plan.*, encode(plan.hash, 'hex') AS hash_in_hex, (
            SELECT later.run_id FROM celeriac.plans AS later WHERE later.continues = run.run_id
        ) AS continued_by
        FROM celeriac.runs AS run LEFT JOIN celeriac.plans AS plan USING (run_id)
        WHERE run.run_id = %s ORDER BY plan.version DESC LIMIT 1
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    if row.erased_at is not None:
        raise erased(run_id, row.erased_at)
    if row.version is None:
        raise InvalidInput(f"run {run_id} executes no plan")
    return StoredPlan(
        run_id,
        RunStatus(row.status),
        row.version,
        row.hash_in_hex,
        row.body,
        row.continues,
        row.continued_by,
        row.created_at,
    )


def is_shown(connection: Connection, run_id: RunId) -> bool:
    """Whether the run executes a plan that was not erased: whether `read` would give one."""
    row = connection.exec_driver_sql(
        "SELECT FROM celeriac.plans JOIN celeriac.runs USING (run_id)"
        " WHERE run_id = %s AND runs.erased_at IS NULL LIMIT 1",
        (run_id,),
    ).fetchone()
    return row is not None


def lines(connection: Connection, run_id: RunId) -> list[Line]:
    """What the log says of the plan's steps, in its order."""
    rows = connection.exec_driver_sql(
        """
        SELECT label, kind, name, told IS NOT NULL,
            CASE WHEN name = %(refused)s || label THEN result ELSE error END, made_by
        FROM celeriac.activities WHERE run_id = %(run_id)s AND label IS NOT NULL
        ORDER BY generation, number
        """,
        {"run_id": run_id, "refused": refused_name("")},
    )
    return [Line(step, EntryKind(kind), *facts) for step, kind, *facts in rows]


def report(connection: Connection, run_id: RunId) -> PlanReport:
    """The plan with the state of each step. Raises as `read` does."""
    stored = read(connection, run_id)
    plan = Plan.from_json(stored.body)
    return PlanReport(
        stored.run_id,
        stored.status,
        stored.version,
        stored.hash,
        plan.goal,
        plan.checkpoint_interval,
        stored.continues,
        stored.continued_by,
        stored.created_at,
        len(graph.layers(plan.needs)),
        nodes(plan, lines(connection, run_id), is_over=stored.status.is_terminal),
    )
