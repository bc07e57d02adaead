"""Who did what, or was not allowed to: rows that are only ever added."""

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.ids import TenantId
from celeriac_storage.owners import know_tenant


def note_denial(
    connection: Connection,
    tenant_id: TenantId,
    actor: str,
    action: str,
    object_: str,
    **detail: JsonValue,
) -> None:
    """Add a row that says that `actor` was refused, perhaps the first of that tenant. Needs a
    transaction."""
    know_tenant(connection, tenant_id)
    note(connection, tenant_id, actor, action, object_, run_id=None, is_allowed=False, **detail)


def note(
    connection: Connection,
    tenant_id: TenantId,
    actor: str,
    action: str,
    object_: str,
    *,
    run_id: str | None = None,
    is_allowed: bool = True,
    **detail: JsonValue,
) -> None:
    """Add a row: `actor` did `action` (`approval.approve`) to the id `object_`, or was denied."""
    connection.exec_driver_sql(
        "INSERT INTO celeriac.audit (tenant_id, actor, action, object, run_id, outcome, detail)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb)",
        (
            tenant_id,
            actor,
            action,
            object_,
            run_id,
            "allowed" if is_allowed else "denied",
            dumps(detail),
        ),
    )
