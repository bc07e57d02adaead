"""What `celeriac doctor` asks the database about itself and about who is there."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac_storage import verdicts


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
        """
        SELECT
            (SELECT count(*) FROM celeriac.workers
                WHERE dead_at IS NULL AND stopped_at IS NULL AND lease_until > clock_timestamp()),
            EXISTS (SELECT FROM celeriac.leaders WHERE held_until > clock_timestamp())
        """
    ).one()
    return Crew(row[0], verdicts.live_agents(connection), row[1])
