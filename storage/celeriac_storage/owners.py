"""Tenants and users are made when somebody first names them."""

from sqlalchemy import Connection

from celeriac.ids import TenantId, UserId


def know_tenant(connection: Connection, tenant_id: TenantId) -> None:
    """Have the tenant, perhaps before any run of it."""
    connection.exec_driver_sql(
        "INSERT INTO celeriac.tenants (tenant_id) VALUES (%s) ON CONFLICT DO NOTHING", (tenant_id,)
    )


def know_user(connection: Connection, tenant_id: TenantId, user_id: UserId) -> None:
    """Have the user in the tenant, perhaps before any run of theirs."""
    know_tenant(connection, tenant_id)
    connection.exec_driver_sql(
        "INSERT INTO celeriac.users (tenant_id, user_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        (tenant_id, user_id),
    )
