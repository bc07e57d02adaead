"""Proposals that nobody decides in time. That is no denial by anybody, and never an approval."""

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import ApprovalId, RunId, TenantId
from celeriac_storage import run_events
from celeriac_storage.deciding import wake


def overdue(connection: Connection, limit: int = 100) -> list[ApprovalId]:
    """Pending proposals whose time is over, for `expire`: a transaction for each."""
    rows = connection.exec_driver_sql(
        """
        SELECT approval_id FROM celeriac.approvals AS approval JOIN celeriac.runs USING (run_id)
        WHERE approval.status = 'pending' AND expires_at <= clock_timestamp()
            AND runs.status NOT IN ('completed', 'failed', 'cancelled')  -- it could not be told
        ORDER BY expires_at LIMIT %s
        """,
        (limit,),
    )
    return [ApprovalId(row[0]) for row in rows]


def expire(connection: Connection, approval_id: ApprovalId) -> bool:
    """End the proposal if it is still pending and its time is over; whether it was. Needs a
    transaction. Its run goes on, and the model is told that nobody decided.

    Rows are locked in the order of `deciding`. A run whose row is locked just now is left for the
    next time: a step commits, or a person decides in the last moment.
    """
    run = connection.exec_driver_sql(
        """
        SELECT run_id, tenant_id, thread_id FROM celeriac.runs
        WHERE run_id = (SELECT run_id FROM celeriac.approvals WHERE approval_id = %s)
        FOR UPDATE SKIP LOCKED
        """,
        (approval_id,),
    ).fetchone()
    if run is None:
        return False
    row = connection.exec_driver_sql(
        """
        UPDATE celeriac.approvals SET status = 'expired'
        WHERE approval_id = %s AND status = 'pending' AND expires_at <= clock_timestamp()
        RETURNING call_id, tool, version, expires_at
        """,
        (approval_id,),
    ).fetchone()
    if row is None:
        return False
    call_id, tool, version, expires_at = row
    error: dict[str, JsonValue] = {
        "kind": "expired",
        "message": f"nobody decided about this call of {tool} before {expires_at:%Y-%m-%d %H:%M} "
        "UTC, and it was not executed",
    }
    connection.exec_driver_sql(
        "UPDATE celeriac.effects SET state = 'expired', error = %s::jsonb,"
        " settled_at = clock_timestamp()"
        " WHERE run_id = %s AND call_id = %s AND state = 'proposed'",
        (dumps(error), run[0], call_id),
    )
    data: dict[str, JsonValue] = {
        "approval_id": approval_id,
        "call_id": call_id,
        "tool": tool,
        "version": version,
    }
    run_events.append(connection, RunId(run[0]), [("approval.expired", data)], is_request=True)
    wake(connection, RunId(run[0]), TenantId(run[1]), run[2])
    return True
