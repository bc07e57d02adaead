"""Whose a run or a thread is. Neither its tenant nor its user ever changes."""

from sqlalchemy import Connection

from celeriac.ids import RunId, TenantId, UserId
from celeriac_storage.requests import unknown_run


def owner_of_run(connection: Connection, tenant_id: TenantId, run_id: RunId) -> UserId | None:
    """None if the tenant has no such run."""
    row = connection.exec_driver_sql(
        "SELECT user_id FROM celeriac.runs WHERE run_id = %s AND tenant_id = %s",
        (run_id, tenant_id),
    ).fetchone()
    return None if row is None else UserId(row[0])


def require_tenant(connection: Connection, tenant_id: TenantId, run_id: RunId) -> None:
    """Raise `UnknownRun` unless the tenant has the run: another's is as unknown as none."""
    if owner_of_run(connection, tenant_id, run_id) is None:
        raise unknown_run(run_id)
