"""The database as one tenant sees it: what a request for that tenant reads and writes through.

Every transaction takes the role `celeriac_api` and names its tenant, so that row-level security
hides the rows of all others, whatever a statement forgets to ask for (migration 0006).
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from psycopg import sql
from psycopg.abc import Params
from sqlalchemy import Connection

from celeriac.ids import TenantId
from celeriac_storage.database import Database, driver_of

ROLE = "celeriac_api"
EVERY_OWNER = ("*",)
_ROLE_MAY_BE_SET_SINCE = 160000  # before, PostgreSQL lets every member of a role set it

SEES_ALL_TENANTS = f"""(
    NOT row_security_active('celeriac.runs') OR NOT EXISTS (
        SELECT FROM pg_roles
        WHERE rolname = '{ROLE}' AND pg_has_role(current_user, oid, 'USAGE')
    )
)"""
"""Whether no row is hidden from a statement that names no tenant: a member of the API's role sees
none."""


class Transactions(Protocol):
    """Where somebody reads and writes: all of the database, or what one tenant sees of it."""

    def begin(self) -> AbstractContextManager[Connection]:
        """A transaction: committed at the end of the block, rolled back by an exception."""
        ...


class TenantDatabase:
    """What those tenants see, one as a rule. Without `is_restricted` nothing but the statements
    themselves keeps tenants apart: for a login that may not take the role (`may_restrict`).

    What is remembered is seen of the `owners` alone, or of all users (`EVERY_OWNER`)."""

    def __init__(
        self,
        database: Database,
        tenants: Sequence[TenantId],
        *,
        owners: Sequence[str] = (),
        is_restricted: bool = True,
    ) -> None:
        self._database = database
        self._scope = _scope(tenants, owners) if is_restricted else None

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A transaction in which only these tenants' rows exist. Nothing has been read in it."""
        with self._database.begin() as connection:
            if self._scope is not None:
                # Several statements at once cannot be prepared. As SET and not by set_config, which
                # would take the snapshot: the transaction may still choose its isolation.
                driver_of(connection).execute(sql.SQL(";").join(self._scope), prepare=False)
            yield connection

    def fetch(self, statement: str, parameters: Params) -> list[tuple[Any, ...]]:
        """The rows of one statement that reads, in a transaction of its own and one round trip: in
        each, two processes wait for a core in turn, on a busy machine for longer than they work."""
        with self._database.connect() as connection:
            driver = driver_of(connection)
            with driver.pipeline(), driver.transaction():
                for setting in self._scope or ():
                    driver.execute(setting, prepare=False)
                rows = driver.execute(statement, parameters)
            return rows.fetchall()


def may_restrict(connection: Connection) -> bool:
    """Whether this login can take the API's role, so that row-level security applies to it."""
    row = connection.exec_driver_sql(
        """
        SELECT pg_has_role(current_user, oid,
            CASE WHEN current_setting('server_version_num')::int >= %s THEN 'SET' ELSE 'MEMBER' END)
        FROM pg_roles WHERE rolname = %s
        """,
        (_ROLE_MAY_BE_SET_SINCE, ROLE),
    ).fetchone()
    return row is not None and bool(row[0])


def _scope(tenants: Sequence[TenantId], owners: Sequence[str]) -> list[sql.Composed]:
    return [
        sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(ROLE)),
        # No id contains a comma.
        sql.SQL("SET LOCAL celeriac.tenant = {}").format(sql.Literal(",".join(tenants))),
        sql.SQL("SET LOCAL celeriac.owner = {}").format(sql.Literal(",".join(owners))),
    ]
