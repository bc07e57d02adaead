"""What can be read off the rows at any moment: how much waits, for how long, and who lives."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

STATEMENT_SECONDS = 2
"""A database that is too busy to answer by then has better things to do."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure; `labels` are the values of the labels that its name has."""

    name: str
    labels: Sequence[str]
    value: float


def read_gauges(connection: Connection) -> list[Gauge]:
    """All figures, of all tenants together, in bounded time. Needs a transaction."""
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'")
    rows = connection.exec_driver_sql(
        "SELECT name, labels, value FROM celeriac.read_gauges()"
        " UNION ALL SELECT name, labels, value FROM celeriac.read_budget_gauges()"
    )
    return [Gauge(*row) for row in rows]
