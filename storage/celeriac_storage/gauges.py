"""What can be read off the rows at any moment: how much waits, for how long, and who lives."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

STATEMENT_SECONDS = 2
"""A database that is too busy to answer by then has better things to do."""

MOST_COUNTED = 100_000  # migration 0015: what there is more of is not counted further


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure; `labels` are the values of the labels that its name has."""

    name: str
    labels: Sequence[str]
    value: float


def read_gauges(connection: Connection) -> list[Gauge]:
    """All figures, of all tenants together, in bounded time. Needs a transaction."""
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'")
    rows = connection.exec_driver_sql("SELECT name, labels, value FROM celeriac.read_gauges()")
    return [Gauge(*row) for row in rows]
