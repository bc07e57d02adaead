"""Runs that undo what another run did: asked for, planned, and told of at their end.

A run that has ended never changes, so its rollback is a run of its own, without a model. Each call
that took effect becomes one effect of it, which names the call. The database lets one rollback of a
run go on at a time, and each call be undone once.

Rows are locked in this order: the run to undo, who asks (shared), the thread of the new run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from celeriac.approval import Requirement
from celeriac.codec import JsonValue
from celeriac.errors import Conflict, InvalidInput, NotAllowed
from celeriac.ids import CallId, RunId, TenantId, ThreadId, UserId
from celeriac.limits import Limits
from celeriac.rollback import Rollback
from celeriac.states import EffectState, Phase, RunKind, RunStatus
from celeriac_storage import agents, audit_trail, effects, principals, run_events, starting
from celeriac_storage.effects import Effect, Undone
from celeriac_storage.new_run import NewRun, Started
from celeriac_storage.requests import erased, unknown_run

_ENDLESS = Limits(steps=10**9, tool_calls=10**9, tokens=10**12, wall_seconds=1e12)
"""Half of a rollback would be worse than a long one; it asks no model, and ends by itself."""

MOST_NAMED = 10  # runs, in one message


@dataclass(frozen=True, slots=True)
class RollbackSpec:
    """What is asked for: to undo the run from a step on, as a run of this id in this thread."""

    run_id: RunId
    from_step: int
    by: UserId
    rollback_id: RunId
    thread_id: ThreadId
    message: dict[str, JsonValue]  # what the rollback's log begins with, in stored form
    is_published: bool = False


@dataclass(frozen=True, slots=True)
class Happened:
    """A call that took effect, or may have, and that nothing has undone."""

    call_id: CallId
    tool: str
    tool_version: str
    state: EffectState
    arguments: JsonValue
    requirement: dict[str, JsonValue] | None  # the review it needed
    is_given_up: bool  # an earlier rollback has found that it cannot be taken back

    @property
    def is_settled(self) -> bool:
        return self.state not in (EffectState.IN_FLIGHT, EffectState.UNKNOWN)


def happened(connection: Connection, run_id: RunId, from_step: int = 0) -> list[Happened]:
    """The run's calls from that step of its model on which can be undone, the latest first."""
    rows = connection.exec_driver_sql(
        """
        SELECT call_id, tool, tool_version, state, arguments, requirement, EXISTS (
            SELECT FROM celeriac.runs AS rollback JOIN celeriac.effects AS undo USING (run_id)
            WHERE rollback.parent_run_id = effect.run_id
                AND undo.rolls_back = effect.call_id AND undo.rolls_back_kind = 'none'
        )
        FROM celeriac.effects AS effect
        WHERE run_id = %s AND step >= %s AND kind <> 'none'
            AND state IN ('committed', 'known_bad', 'in_flight', 'unknown')
            AND NOT EXISTS (
                SELECT FROM celeriac.effects AS undo
                WHERE (undo.rolls_back_run, undo.rolls_back) = (effect.run_id, effect.call_id)
                    AND undo.rolls_back_stands
            )
        -- A call that waited for a person took effect after later ones of its response.
        ORDER BY settled_at DESC, step DESC, call_index DESC
        """,
        (run_id, from_step),
    )
    return [
        Happened(row[0], row[1], row[2], EffectState(row[3]), row[4], row[5], row[6])
        for row in rows
    ]


def request(connection: Connection, spec: RollbackSpec) -> tuple[Started, str]:
    """Start the rollback; where it stands, and its queue. Needs a transaction, to be rolled back
    after an error.

    Raises `UnknownRun`; `InvalidInput` for a step that the run has not; `Conflict` while the run
    goes on, while another rollback of it does, while it is not known what came of one of the calls,
    and if nothing is left to undo; `NotAllowed` if a call needed a decision that this person may
    not take, which the caller records (`record_denial`).
    """
    run = _lock(connection, spec)
    calls = happened(connection, spec.run_id, spec.from_step)
    _check_settled(connection, spec, calls)
    irreversible = _irreversible_tools(connection, run.agent)
    kept = [call for call in calls if irreversible.get(call.tool, call.is_given_up)]
    if len(kept) == len(calls):
        named = ", ".join(f"{call.call_id} ({call.tool})" for call in kept)
        why = (
            f"what did take effect cannot be taken back: {named}"
            if kept
            else "no call there has taken effect, or what has is undone"
        )
        if made := _activities(connection, spec.run_id):
            why = (
                "each activity of a workflow is a run of its own; roll those back, the latest "
                f"first: {', '.join(made)}"
            )
        raise Conflict(
            f"nothing is left to undo in run {spec.run_id} from step {spec.from_step} on: {why}"
        )
    _check_allowed(connection, run.tenant_id, spec, calls)
    asked: dict[str, JsonValue] = {
        "run_id": spec.run_id,
        "from_step": spec.from_step,
        "calls": [call.call_id for call in calls],  # that who asks was checked for, and no others
    }
    started = starting.start(
        connection,
        NewRun(
            run_id=spec.rollback_id,
            agent=run.agent,
            input=dict(asked),
            user_message=spec.message,
            limits=_ENDLESS.to_json(),
            thread_id=spec.thread_id,
            user_id=run.user_id,
            tenant_id=run.tenant_id,
            queue=run.queue,
            kind=RunKind.ROLLBACK,
            rolls_back=spec.run_id,
            is_published=spec.is_published,
        ),
    )
    run_events.append(
        connection,
        spec.rollback_id,
        [("rollback.requested", {**asked, "by": spec.by})],
        is_request=False,
    )
    audit_trail.note(
        connection,
        run.tenant_id,
        spec.by,
        "run.rollback",
        spec.run_id,
        run_id=spec.rollback_id,
        from_step=spec.from_step,
        calls=asked["calls"],
    )
    return started, run.queue


def record_denial(connection: Connection, spec: RollbackSpec, why: NotAllowed) -> None:
    """Record that somebody asked for a rollback who may not, and that nothing came of it."""
    tenant_id = connection.exec_driver_sql(
        "SELECT tenant_id FROM celeriac.runs WHERE run_id = %s", (spec.run_id,)
    ).scalar_one()
    audit_trail.note(
        connection,
        TenantId(tenant_id),
        spec.by,
        "run.rollback",
        spec.run_id,
        run_id=spec.run_id,
        is_allowed=False,
        from_step=spec.from_step,
        message=str(why),
    )


def load(connection: Connection, run_id: RunId, call_ids: list[CallId]) -> list[Effect]:
    """The undos of these ids in the order in which they are made, each with what it takes back."""
    rows = connection.exec_driver_sql(
        """
        SELECT undo.call_id, original.run_id, original.call_id, undo.rolls_back_kind,
            original.result, convert_from(content, 'UTF8')::jsonb,
            original.state IN ('committed', 'known_bad')
        FROM celeriac.effects AS undo
        JOIN celeriac.effects AS original
            ON (original.run_id, original.call_id) = (undo.rolls_back_run, undo.rolls_back)
        LEFT JOIN celeriac.artifacts ON hash = original.result_artifact
        WHERE undo.run_id = %s AND undo.call_id = ANY (%s)
        """,
        (run_id, call_ids),
    )
    undone = {
        call_id: Undone(
            of_run, of_call, Rollback(kind), result if content is None else content, is_in_effect
        )
        for call_id, of_run, of_call, kind, result, content, is_in_effect in rows
    }
    loaded = effects.load(connection, run_id, call_ids)
    return [replace(effect, undoes=undone[effect.call_id]) for effect in loaded]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of taking one call back."""

    call_id: CallId  # that was to be undone
    tool: str
    kind: Rollback
    state: EffectState  # of the undo
    error: dict[str, JsonValue] | None
    result: JsonValue  # what the undo returned


def outcomes(connection: Connection, run_id: RunId) -> list[Outcome]:
    """What came of the rollback's undos, in the order in which they were made."""
    rows = connection.exec_driver_sql(
        """
        SELECT original.call_id, original.tool, undo.rolls_back_kind, undo.state, undo.error,
            coalesce(convert_from(content, 'UTF8')::jsonb, undo.result)
        FROM celeriac.effects AS undo
        JOIN celeriac.effects AS original
            ON (original.run_id, original.call_id) = (undo.rolls_back_run, undo.rolls_back)
        LEFT JOIN celeriac.artifacts ON hash = undo.result_artifact
        WHERE undo.run_id = %s ORDER BY undo.call_index
        """,
        (run_id,),
    )
    return [
        Outcome(row[0], row[1], Rollback(row[2]), EffectState(row[3]), row[4], row[5])
        for row in rows
    ]


def _activities(connection: Connection, run_id: RunId) -> list[RunId]:
    """The latest runs of a workflow's activities that did something which is not undone."""
    rows = connection.exec_driver_sql(
        """
        SELECT run_id FROM celeriac.runs AS activity JOIN celeriac.effects AS effect USING (run_id)
        WHERE activity.parent_run_id = %s AND activity.kind = 'activity' AND effect.kind <> 'none'
            AND state IN ('committed', 'known_bad', 'in_flight', 'unknown')
            AND NOT EXISTS (
                SELECT FROM celeriac.effects AS undo
                WHERE (undo.rolls_back_run, undo.rolls_back) = (effect.run_id, effect.call_id)
                    AND undo.rolls_back_stands
            )
        ORDER BY settled_at DESC LIMIT %s
        """,
        (run_id, MOST_NAMED),
    )
    return [RunId(row[0]) for row in rows]


def _irreversible_tools(connection: Connection, agent: str) -> dict[str, bool]:
    """Of each tool of the agent, as a worker last registered it, whether what it does can never be
    taken back. The rollback's own worker decides by its own code; this spares people a run that
    could do nothing."""
    definition = agents.latest_definition(connection, agent) or {}
    tools = definition.get("tools")
    return {
        str(tool["name"]): tool.get("rollback") == Rollback.NONE.value
        for tool in (tools if isinstance(tools, list) else [])
        if isinstance(tool, dict)
    }


@dataclass(frozen=True, slots=True)
class _Run:
    tenant_id: TenantId
    user_id: UserId
    agent: str
    queue: str


def _lock(connection: Connection, spec: RollbackSpec) -> _Run:
    run_id = spec.run_id
    row: Any = connection.exec_driver_sql(
        "SELECT tenant_id, user_id, agent, queue, kind, status, phase, step, erased_at"
        " FROM celeriac.runs WHERE run_id = %s FOR UPDATE",
        (run_id,),
    ).fetchone()
    if row is None:
        raise unknown_run(run_id)
    if row.erased_at is not None:
        raise erased(run_id, row.erased_at)
    # Not isinstance: True is no step.
    if type(spec.from_step) is not int or not 0 <= spec.from_step < max(1, row.step):
        raise InvalidInput(
            f"run {run_id} has no step {spec.from_step!r} to undo from: its steps are 0 to "
            f"{max(0, row.step - 1)}"
        )
    if row.kind == "rollback":
        raise Conflict(
            f"run {run_id} is a rollback, and what it did is not undone: to have it done again, "
            "start a new run"
        )
    status = RunStatus(row.status)
    is_still = status is RunStatus.NEEDS_ATTENTION or (status, row.phase) == (
        RunStatus.PAUSED,
        Phase.WAITING_USER,
    )
    if not status.is_terminal and not is_still:
        raise Conflict(
            f"run {run_id} is {status} and may do more: say `celeriac cancel {run_id}` or "
            f"`celeriac interrupt {run_id}` first"
        )
    other = connection.exec_driver_sql(
        "SELECT run_id FROM celeriac.runs WHERE parent_run_id = %s AND kind = 'rollback'"
        " AND status NOT IN ('completed', 'failed', 'cancelled')",
        (run_id,),
    ).scalar()
    if other is not None:
        raise Conflict(
            f"run {run_id} is being rolled back by run {other}, and one rollback goes on at a "
            f"time: `celeriac show {other}` tells how far it is"
        )
    return _Run(row.tenant_id, row.user_id, row.agent, row.queue)


def _check_settled(connection: Connection, spec: RollbackSpec, calls: Sequence[Happened]) -> None:
    """Raise `Conflict` if it is not known what came of a call, or of an earlier undo of one."""
    unsettled = [(spec.run_id, call.call_id, call.tool) for call in calls if not call.is_settled]
    rows = connection.exec_driver_sql(
        """
        SELECT undo.run_id, undo.call_id, undo.tool
        FROM celeriac.effects AS undo JOIN celeriac.effects AS original
            ON (original.run_id, original.call_id) = (undo.rolls_back_run, undo.rolls_back)
        WHERE original.run_id = %s AND original.step >= %s AND undo.rolls_back_stands
            AND undo.state <> 'committed'
        UNION ALL
        -- Found to be not done, while their own workers have told since that they are.
        SELECT told.run_id, told.call_id, told.tool
        FROM celeriac.effects AS told
        WHERE (told.run_id = %s AND told.step >= %s OR EXISTS (
                SELECT FROM celeriac.effects AS original
                WHERE (original.run_id, original.call_id) = (told.rolls_back_run, told.rolls_back)
                    AND original.run_id = %s AND original.step >= %s
                    AND original.state IN ('committed', 'known_bad')
            )) AND told.state = 'not_done' AND EXISTS (
                SELECT FROM celeriac.effect_attempts AS entry
                WHERE (entry.run_id, entry.call_id, entry.attempt)
                    = (told.run_id, told.call_id, told.attempt) AND entry.outcome = 'committed'
            )
        ORDER BY 1, 2
        """,
        (spec.run_id, spec.from_step) * 3,
    )
    unsettled += [(row[0], row[1], row[2]) for row in rows]
    if unsettled:
        run_id, call_id, tool = unsettled[0]
        raise Conflict(
            f"run {spec.run_id} cannot be rolled back before it is known what came of call "
            f"{call_id} ({tool}) of run {run_id}: look at its target, then say `celeriac resolve "
            f"{run_id} {call_id} --committed JSON` or `--not-done`"
        )


def _check_allowed(
    connection: Connection, tenant_id: TenantId, spec: RollbackSpec, calls: Sequence[Happened]
) -> None:
    """Raise `NotAllowed` if a call needed a decision that this person may not take."""
    reviewed = [(call, call.requirement) for call in calls if call.requirement is not None]
    if not reviewed:
        return
    person = principals.lock(connection, tenant_id, [spec.by])[spec.by]
    for call, stored in reviewed:
        # Who owns the run may have it undone: nobody needs protection from that.
        requirement = replace(Requirement.from_json(stored), allow_self=True)
        tool = call.tool
        objection = person.objection(requirement, tool, call.arguments, spec.by)
        if objection is not None:
            raise NotAllowed(
                f"run {spec.run_id} cannot be rolled back by {spec.by}, since call {call.call_id} "
                f"({tool}) needed a decision: {objection}. Nothing was changed"
            )
