"""What `celeriac doctor` and `celeriac health` ask the database: about itself, and who is there."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac.ids import WorkerId
from celeriac_storage import verdicts
from celeriac_storage.workers import IS_ALIVE

SCHEDULER_APPLICATION_NAME = "celeriac-scheduler"
"""What a scheduler's session calls itself."""


@dataclass(frozen=True, slots=True)
class Server:
    version: str
    at: datetime  # its clock, which is the one that counts


def read_server(connection: Connection) -> Server:
    """Needs no Celeriac tables."""
    row: Any = connection.exec_driver_sql(
        "SELECT current_setting('server_version'), clock_timestamp()"
    ).one()
    return Server(row[0], row[1])


@dataclass(frozen=True, slots=True)
class Crew:
    """Who works on this database just now."""

    live_workers: int
    agents: Sequence[str]  # that at least one of them has
    has_scheduler: bool


def read_crew(connection: Connection) -> Crew:
    row: Any = connection.exec_driver_sql(
        f"""
        SELECT
            (SELECT count(*) FROM celeriac.workers WHERE {IS_ALIVE}),
            EXISTS (SELECT FROM celeriac.leaders WHERE held_until > clock_timestamp())
        """
    ).one()
    return Crew(row[0], verdicts.live_agents(connection), row[1])


@dataclass(frozen=True, slots=True)
class Vectors:
    """Whether memories have vectors, and what compares them."""

    are_kept: bool
    pgvector: str | None  # its version; None: a sum in SQL does it


def read_vectors(connection: Connection) -> Vectors:
    row: Any = connection.exec_driver_sql(
        "SELECT EXISTS (SELECT FROM celeriac.memory_vectors),"
        " (SELECT extversion FROM pg_extension WHERE extname = 'vector')"
    ).one()
    return Vectors(*row)


def live_workers_on(connection: Connection, hostname: str) -> Sequence[WorkerId]:
    """The live workers that registered from this host."""
    rows = connection.exec_driver_sql(
        f"SELECT worker_id FROM celeriac.workers WHERE hostname = %s AND {IS_ALIVE} ORDER BY 1",
        (hostname,),
    )
    return [WorkerId(row[0]) for row in rows]


def scheduler_silence_seconds(connection: Connection) -> float | None:
    """How long ago a scheduler last said something, of those that connect from where `connection`
    comes from; None if there is none.

    Each asks for its term of leadership several times a term, leading or not, on the one session
    that it has for life. So a frozen one shows, though another leads in its place. It cannot be
    told behind a pooler, which has sessions of its own.
    """
    silence: float | None = connection.exec_driver_sql(
        """
        SELECT min(extract(epoch FROM clock_timestamp() - greatest(query_start, state_change)))
            ::float8
        FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = %s
            AND client_addr IS NOT DISTINCT FROM inet_client_addr()
        """,
        (SCHEDULER_APPLICATION_NAME,),
    ).scalar()
    return silence
