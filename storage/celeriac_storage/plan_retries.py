"""Runs that do what is left of the plan of another one, as it was or as it was edited.

A run that has ended never changes, so this is a run of its own. Its log begins with the results
that still stand, which makes them its own as well: the earlier run may be pruned meanwhile.

Rows are locked in this order: the earlier run, the thread of both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.errors import Conflict
from celeriac.ids import RunId, UserId
from celeriac.limits import Limits
from celeriac.plan import Plan
from celeriac.plan.log import first_lines, kept_name
from celeriac.plan.progress import kept
from celeriac.states import RunStatus
from celeriac_storage import admitting, audit_trail, plans, starting
from celeriac_storage.forks import Forked
from celeriac_storage.new_run import NewPlan
from celeriac_storage.requests import unknown_run


@dataclass(frozen=True, slots=True)
class PlanRetrySpec:
    """Which run's plan is to go on, as a run of which id, and how it reads if it was edited."""

    run_id: RunId
    by: UserId
    retry_id: RunId
    plan: JsonValue = None  # None: as it was
    is_published: bool = False


def retry(connection: Connection, spec: PlanRetrySpec) -> Forked:
    """Start the run that does what is left. Needs a transaction, to be rolled back after an error.

    A step's result stands if the step was completed and not taken back, and if it and all that it
    depends on read the same as before. To ask for the same again changes nothing. Raises
    `UnknownRun`; `InvalidInput` if the run executes no plan, or the edited one cannot be used;
    `Conflict` if the run goes on, if something is still to happen with one of its steps, or if what
    is left is done by another run already.
    """
    run = _lock(connection, spec.run_id)
    earlier = plans.read(connection, spec.run_id)
    plan = Plan.from_json(earlier.body if spec.plan is None else spec.plan)
    body = plan.to_json()
    if earlier.continued_by is not None:
        return _before(connection, earlier.continued_by, body)
    _refuse_early(connection, spec.run_id, run)
    stands = kept(plan, Plan.from_json(earlier.body), _done(connection, spec.run_id))
    is_edited = body != earlier.body
    admitted = admitting.admit(
        connection,
        admitting.RunSpec(
            run.agent,
            body,
            run_id=spec.retry_id,
            thread_id=run.thread_id,
            user_id=run.user_id,
            tenant_id=run.tenant_id,
            limits=Limits.from_json(run.limits),
            is_published=spec.is_published,
            made_steps=stands,
        ),
    )
    next_plan = NewPlan(body, earlier.version + int(is_edited), continues=spec.run_id)
    started = starting.start(connection, replace(admitted, plan=next_plan))
    _keep(connection, spec, stands)
    audit_trail.note(
        connection, run.tenant_id, spec.by, "run.retry", spec.run_id,
        run_id=spec.run_id, retried_as=spec.retry_id, is_edited=is_edited, kept=len(stands),
    )  # fmt: skip
    return Forked(spec.retry_id, run.thread_id, admitted.queue, started, is_new=True)


def _lock(connection: Connection, run_id: RunId) -> Any:
    row = connection.exec_driver_sql(
        """
        SELECT tenant_id, user_id, thread_id, agent, limits, status, parent_run_id, (
            SELECT parent.status NOT IN ('completed', 'failed', 'cancelled')
            FROM celeriac.runs AS parent WHERE parent.run_id = run.parent_run_id
        ) AS has_parent
        FROM celeriac.runs AS run WHERE run_id = %s FOR UPDATE OF run
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    return row


def _before(connection: Connection, run_id: RunId, plan: JsonValue) -> Forked:
    row: Any = connection.exec_driver_sql(
        "SELECT run_id, thread_id, queue, status, phase, body FROM celeriac.runs"
        " JOIN celeriac.plans USING (run_id) WHERE run_id = %s",
        (run_id,),
    ).one()
    if row.body != plan:
        raise Conflict(
            f"what is left is done by run {run_id} already, of another plan than this: cancel that "
            "if it goes on, and retry it with this plan"
        )
    return Forked.before(row)


def _refuse_early(connection: Connection, run_id: RunId, run: Any) -> None:
    status = RunStatus(run.status)
    if not status.is_terminal:
        raise Conflict(
            f"run {run_id} is {status}: what is left of its plan can be done by another run when "
            f"it has ended, which `celeriac cancel {run_id}` makes it"
        )
    if run.has_parent:
        raise Conflict(
            f"run {run_id} was started by run {run.parent_run_id}, which was told how it ended and "
            "goes on by itself: retry this one when that has ended too"
        )
    restless = connection.exec_driver_sql(
        """
        SELECT label, made.run_id, coalesce(call.state, made.status)
        FROM celeriac.activities AS line JOIN celeriac.runs AS made ON made.run_id = made_by
        LEFT JOIN celeriac.effects AS call ON call.run_id = made.run_id
            AND call.state IN ('in_flight', 'unknown', 'known_bad')
        WHERE line.run_id = %s AND label IS NOT NULL
            AND (made.status NOT IN ('completed', 'failed', 'cancelled') OR call.state IS NOT NULL)
        ORDER BY number
        """,
        (run_id,),
    ).all()
    if restless:
        told = "; ".join(f"step {step} (run {made}) is {state}" for step, made, state in restless)
        raise Conflict(
            f"what is left of the plan of run {run_id} cannot be done yet, since something is "
            f"still to happen with its steps: {told}. Settle calls with `celeriac resolve`"
        )


def _done(connection: Connection, run_id: RunId) -> set[str]:
    """The steps with a result. Not one that was taken back: it is to be made again."""
    taken_back = set(
        connection.exec_driver_sql(
            "SELECT made_by FROM celeriac.activities JOIN celeriac.runs AS undoing"
            " ON undoing.kind = 'rollback' AND undoing.parent_run_id = made_by"
            " WHERE activities.run_id = %s",
            (run_id,),
        ).scalars()
    )
    return {
        line.step
        for line in plans.lines(connection, run_id)
        if line.name == kept_name(line.step)
        or (line.has_ended and line.error is None and line.made_by not in taken_back)
    }


def _keep(connection: Connection, spec: PlanRetrySpec, stands: Sequence[str]) -> None:
    """Begin the log of the new run with the results that stand. They do not leave the database."""
    if not stands:
        return
    asked = [
        {
            "number": line.number,
            "name": line.name,
            "label": line.label,
            "fingerprint": line.fingerprint,
            "value": line.value,
        }
        for line in first_lines(stands)
    ]
    connection.exec_driver_sql(
        """
        WITH line AS (
            SELECT * FROM jsonb_to_recordset(%(lines)s::jsonb)
                AS line (number int, name text, label text, fingerprint text, value jsonb)
        ), done AS (
            SELECT DISTINCT ON (label) label, result, result_hash, result_artifact
            FROM celeriac.activities
            WHERE run_id = %(run_id)s AND label IS NOT NULL AND error IS NULL
                AND (told IS NOT NULL OR name = %(kept)s || label)
            ORDER BY label, generation DESC, number DESC
        )
        INSERT INTO celeriac.activities (run_id, generation, number, kind, name, label, fingerprint,
            step, result, result_hash, result_artifact)
        SELECT %(retry_id)s, 0, number, 'value', name, NULL, decode(fingerprint, 'hex'), 0,
            value, sha256(convert_to(value::text, 'UTF8')), NULL
        FROM line WHERE label IS NULL
        UNION ALL
        SELECT %(retry_id)s, 0, number, 'value', name, label, decode(fingerprint, 'hex'), 0,
            result, result_hash, result_artifact
        FROM line JOIN done USING (label)
        """,
        {
            "run_id": spec.run_id,
            "retry_id": spec.retry_id,
            "kept": kept_name(""),
            "lines": dumps(asked),
        },
    )
