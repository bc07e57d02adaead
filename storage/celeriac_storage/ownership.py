"""Whose a run or a thread is. Neither its tenant nor its user ever changes."""

from sqlalchemy import Connection

from celeriac.ids import RunId, TenantId, UserId


def owner_of_run(connection: Connection, tenant_id: TenantId, run_id: RunId) -> UserId | None:
    """None if the tenant has no such run."""
    row = connection.exec_driver_sql(
        "SELECT user_id FROM celeriac.runs WHERE run_id = %s AND tenant_id = %s",
        (run_id, tenant_id),
    ).fetchone()
    return None if row is None else UserId(row[0])
