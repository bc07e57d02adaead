"""What a run that another one started tells its parent, and what is left when one of both ends.

The end of a child settles its parent's call in the same transaction, or ends the entry of the
parent's log, if that is a workflow (`entry_ends`).

Rows are locked in this order: the child, its parent, that one's call. Whoever has locked a parent
never waits for a child (`requests.cancel_children`), so the two cannot lock each other out.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue
from celeriac.ids import CallId, RunId
from celeriac.states import EffectState, Phase, RunKind, RunStatus
from celeriac_storage import pauses, run_events
from celeriac_storage.dispatch import Due
from celeriac_storage.entry_ends import Outcome, end_entry
from celeriac_storage.entry_ids import GENERATION_OF_CHILD
from celeriac_storage.settling import settle


@dataclass(frozen=True, slots=True)
class _Child:
    parent: RunId
    is_of_workflow: bool
    call_id: CallId
    kind: RunKind
    agent: str
    status: RunStatus
    outcome: str
    result: JsonValue
    error: dict[str, JsonValue] | None


def report_end(connection: Connection, run_id: RunId, *, is_published: bool = False) -> Due | None:
    """Tell the run's parent, if it has one, what came of it. Needs the transaction that ends it.

    The parent's step that is due then, if this was the last child that it waited for; with
    `is_published` the caller publishes it.
    """
    child = _read(connection, run_id)
    if child is None:
        return None
    if child.is_of_workflow:
        is_completed = child.status is RunStatus.COMPLETED
        error = None if is_completed else _error_of_entry(connection, run_id, child)
        return end_entry(
            connection,
            child.parent,
            child.call_id,
            Outcome(made_by=run_id, error=error),
            is_published=is_published,
        )
    parent: Any = connection.exec_driver_sql(
        "SELECT status, phase FROM celeriac.runs WHERE run_id = %s FOR UPDATE",
        (child.parent,),
    ).one()
    status = RunStatus(parent[0])
    settled = _settle(connection, run_id, child)
    if settled is None or status.is_terminal:  # no event may follow the last one
        return None
    state, tool, error = settled
    data: dict[str, JsonValue] = {"call_id": child.call_id, "tool": tool}
    if error is not None:
        data["error"] = error
    run_events.append(connection, child.parent, [(f"effect.{state}", data)], is_request=True)
    _add_use(connection, run_id, child.parent)
    if parent[1] != Phase.WAITING_CHILD or _waits(connection, child.parent):
        return None
    # It has held its thread meanwhile, so there is no turn to wait for.
    woken = pauses.wake(
        connection,
        Phase.WAITING_CHILD,
        "%(run_id)s",
        {"run_id": child.parent},
        is_published=is_published,
    )
    return woken[0] if woken else None


def orphans(connection: Connection, limit: int = 100) -> list[tuple[RunId, RunId]]:
    """Children that go on although their parents have ended, or have continued as new since, each
    with its parent, to be cancelled. One that was asked to end already is left to its step."""
    rows = connection.exec_driver_sql(
        f"""
        SELECT child.run_id, child.parent_run_id FROM celeriac.runs AS child
        JOIN celeriac.runs AS parent ON parent.run_id = child.parent_run_id
        WHERE child.parent_call_id IS NOT NULL AND child.finished_at IS NULL
            AND child.cancel_requested_at IS NULL
            AND (parent.finished_at IS NOT NULL OR CASE WHEN parent.kind = 'workflow'
                THEN {GENERATION_OF_CHILD} < parent.generation END)
        LIMIT %s
        """,
        (limit,),
    )
    return [(RunId(row[0]), RunId(row[1])) for row in rows]


def note_started(
    connection: Connection,
    parent: RunId,
    call_id: CallId,
    child: RunId,
    *,
    agent: str,
    is_handoff: bool,
) -> None:
    """Count the child, and tell of it in its parent's history, in the transaction that starts it
    and has locked the parent."""
    connection.exec_driver_sql(
        "UPDATE celeriac.runs SET children_started = children_started + 1 WHERE run_id = %s",
        (parent,),
    )
    data: dict[str, JsonValue] = {
        "call_id": call_id,
        "child_run_id": child,
        "agent": agent,
        "is_handoff": is_handoff,
    }
    run_events.append(connection, parent, [("child.started", data)], is_request=False)


def _read(connection: Connection, run_id: RunId) -> _Child | None:
    row: Any = connection.exec_driver_sql(
        """
        SELECT parent.run_id, parent.kind = 'workflow', child.parent_call_id, child.kind,
            child.agent, child.status, child.outcome,
            CASE WHEN parent.kind <> 'workflow' THEN child.result END, child.error
        FROM celeriac.runs AS child JOIN celeriac.runs AS parent
            ON parent.run_id = child.parent_run_id
        WHERE child.run_id = %s AND child.parent_call_id IS NOT NULL
            AND child.finished_at IS NOT NULL
        """,
        (run_id,),
    ).fetchone()
    if row is None:
        return None
    parent, is_of_workflow, call_id, kind, agent, status, *left = row
    return _Child(
        RunId(parent),
        is_of_workflow,
        CallId(call_id),
        RunKind(kind),
        agent,
        RunStatus(status),
        *left,
    )


def _settle(
    connection: Connection, run_id: RunId, child: _Child
) -> tuple[EffectState, str, dict[str, JsonValue] | None] | None:
    """What the call has become and its tool; None if it was settled before."""
    was = connection.exec_driver_sql(
        "SELECT state FROM celeriac.effects WHERE run_id = %s AND call_id = %s"
        " AND state IN ('in_flight', 'unknown') FOR UPDATE",
        (child.parent, child.call_id),
    ).scalar()
    if was is None:
        return None
    error = None if child.status is RunStatus.COMPLETED else _error(run_id, child)
    state = EffectState.COMMITTED if error is None else EffectState.FAILED
    ((_, tool),) = settle(
        connection,
        child.parent,
        EffectState(was),
        state,
        call_id=child.call_id,
        result=child.result,
        error=error,
        evidence={"child_run_id": run_id},
    )
    return state, tool, error


def _error(run_id: RunId, child: _Child) -> dict[str, JsonValue]:
    """What the parent's model is told of a child that has no result."""
    why = (child.error or {}).get("message")
    told = f": {why}" if why else ""
    return {
        "kind": f"child_{child.status}",
        "child_run_id": run_id,
        "outcome": child.outcome,
        "message": f"agent {child.agent} has not done it: its run {child.status}{told}"
        if child.status is RunStatus.FAILED
        else f"agent {child.agent} has not done it: its run was {child.status}",
    }


def _error_of_entry(connection: Connection, run_id: RunId, child: _Child) -> dict[str, JsonValue]:
    """What is raised in a workflow's code: of an activity the error of its call."""
    if child.kind is RunKind.ACTIVITY and child.error is not None:
        return {**child.error, "run_id": run_id}
    error: dict[str, JsonValue] = {**_error(run_id, child), "run_id": run_id}
    if child.kind is RunKind.ACTIVITY:
        tool, is_unknown = connection.exec_driver_sql(
            "SELECT tool, state = 'unknown' FROM celeriac.effects WHERE run_id = %s", (run_id,)
        ).one()
        unknown = ", and nobody knows whether it has taken effect" if is_unknown else ""
        error["message"] = f"the call of {tool} was {child.status}{unknown}"
    return error


def _add_use(connection: Connection, run_id: RunId, parent: RunId) -> None:
    connection.exec_driver_sql(
        """
        UPDATE celeriac.runs AS parent SET
            child_steps_used = parent.child_steps_used + child.step + child.child_steps_used,
            child_tool_calls_used = parent.child_tool_calls_used + child.tool_calls_used
                + child.child_tool_calls_used,
            child_tokens_used = parent.child_tokens_used + child.input_tokens_used
                + child.output_tokens_used + child.child_tokens_used
        FROM celeriac.runs AS child
        WHERE parent.run_id = %s AND child.run_id = %s
        """,
        (parent, run_id),
    )


def _waits(connection: Connection, run_id: RunId) -> bool:
    """Whether another child of the run goes on."""
    row = connection.exec_driver_sql(
        "SELECT FROM celeriac.effects"
        " WHERE run_id = %s AND state = 'in_flight' AND flags ? 'child' LIMIT 1",
        (run_id,),
    ).fetchone()
    return row is not None
