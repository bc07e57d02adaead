"""One thing that must hold of the rows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: its invariant's number, what it says, and a query for the rows that break it."""

    invariant: int
    name: str
    sql: str


TERMINAL = "('completed', 'failed', 'cancelled')"
"""The statuses of a run that has ended, for an SQL `IN`."""
