"""What can be read off the rows at any moment: how much waits, for how long, and who lives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from celeriac_storage.tenancy import SEES_ALL_TENANTS

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
    return [*(Gauge(*row) for row in rows), *_budgets(connection)]


def _budgets(connection: Connection) -> Iterator[Gauge]:
    """How full budgets are. A login that is a member of the API's role sees no tenant's rows by
    itself, and tells nothing: 0 would be wrong."""
    rows = connection.exec_driver_sql(
        f"""
        SELECT scope, measure, CASE WHEN gone >= hard_limit THEN 'used_up'
            WHEN gone >= soft_limit THEN 'warned' ELSE 'open' END AS state,
            count(*), max(gone / nullif(hard_limit, 0))
        FROM (
            SELECT scope, measure, soft_limit, hard_limit, used + reserved AS gone
            FROM celeriac.budgets LIMIT {MOST_COUNTED}
        ) AS budget
        WHERE {SEES_ALL_TENANTS}
        GROUP BY scope, measure, state
        """
    ).all()
    fullest: dict[tuple[str, str], float] = {}
    for scope, measure, state, count, ratio in rows:
        yield Gauge("budgets", (scope, measure, state), count)
        if ratio is not None:
            fullest[scope, measure] = max(float(ratio), fullest.get((scope, measure), 0.0))
    for labels, ratio in fullest.items():
        yield Gauge("budget_use_ratio", labels, ratio)
