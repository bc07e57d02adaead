"""Who may decide what: roles, tools, and limits on their arguments."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection

from celeriac import reports
from celeriac.codec import JsonValue, dumps
from celeriac.ids import TenantId, UserId
from celeriac.principal import Permissions, Principal, permissions_from_json, permissions_to_json
from celeriac_storage import audit_trail
from celeriac_storage.owners import know_tenant


def set_principal(
    connection: Connection,
    tenant_id: TenantId,
    user_id: UserId,
    *,
    roles: Sequence[str],
    permissions: Permissions,
    is_disabled: bool,
    by: UserId,
) -> reports.Principal:
    """Register the person, or replace what was said before. Needs a transaction.

    Waits for the calls that start just now on this person's decision; what starts later knows of
    the change.
    """
    know_tenant(connection, tenant_id)
    row = connection.exec_driver_sql(
        """
        INSERT INTO celeriac.principals AS known (tenant_id, user_id, roles, permissions,
            disabled_at)
        VALUES (%(tenant_id)s, %(user_id)s, %(roles)s, %(permissions)s::jsonb,
            CASE WHEN %(is_disabled)s THEN clock_timestamp() END)
        ON CONFLICT (tenant_id, user_id) DO UPDATE SET roles = excluded.roles,
            permissions = excluded.permissions, disabled_at = CASE WHEN %(is_disabled)s
                THEN coalesce(known.disabled_at, clock_timestamp()) END
        RETURNING user_id, roles, permissions, version, disabled_at
        """,
        {
            "tenant_id": tenant_id,
            "user_id": user_id,
            "roles": sorted(set(roles)),
            "permissions": dumps(permissions_to_json(permissions)),
            "is_disabled": is_disabled,
        },
    ).one()
    report = _report(row)
    audit_trail.note(
        connection,
        tenant_id,
        by,
        "principal.set",
        user_id,
        roles=list(report.roles),
        permissions=dict(report.permissions),
        version=report.version,
        disabled=report.disabled,
    )
    return report


def list_principals(connection: Connection, tenant_id: TenantId) -> list[reports.Principal]:
    """All registered persons, by id."""
    rows = connection.exec_driver_sql(
        "SELECT user_id, roles, permissions, version, disabled_at FROM celeriac.principals"
        " WHERE tenant_id = %s ORDER BY user_id",
        (tenant_id,),
    )
    return [_report(row) for row in rows]


def read(connection: Connection, tenant_id: TenantId, user_id: UserId) -> Principal:
    """One person; somebody who was never registered has no role and no limit."""
    row: Any = connection.exec_driver_sql(
        "SELECT roles, permissions, version, disabled_at FROM celeriac.principals"
        " WHERE tenant_id = %s AND user_id = %s",
        (tenant_id, user_id),
    ).fetchone()
    if row is None:
        return Principal(user_id)
    roles, permissions, version, disabled_at = row
    return Principal(
        user_id, tuple(roles), permissions_from_json(permissions), version, disabled_at is not None
    )


def lock(
    connection: Connection, tenant_id: TenantId, user_ids: Collection[str]
) -> dict[UserId, Principal]:
    """These persons, who stay as they are until the transaction ends.

    Somebody who was never registered has no role and no limit, and there is nothing to lock.
    """
    known: dict[UserId, Principal] = {}
    rows: Any = connection.exec_driver_sql(
        "SELECT user_id, roles, permissions, version, disabled_at"
        " FROM celeriac.lock_principals(%s, %s)",
        (tenant_id, sorted(user_ids)),
    )
    for user_id, roles, permissions, version, disabled_at in rows:
        known[UserId(user_id)] = Principal(
            UserId(user_id),
            tuple(roles),
            permissions_from_json(permissions),
            version,
            disabled_at is not None,
        )
    return {
        UserId(user_id): known.get(UserId(user_id), Principal(UserId(user_id)))
        for user_id in user_ids
    }


def _report(row: Any) -> reports.Principal:
    user_id, roles, permissions, version, disabled_at = row
    stored: dict[str, JsonValue] = permissions
    return reports.Principal(user_id, roles, stored, version, disabled_at is not None)
