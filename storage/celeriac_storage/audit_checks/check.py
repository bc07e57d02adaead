"""One thing that must hold of the rows."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: its invariant's number, what it says, and a query for the rows that break it."""

    invariant: int
    name: str
    sql: str


def is_whole(row: str) -> str:
    """That the run which the table called `row` belongs to was not pruned."""
    return f"""NOT EXISTS (
        SELECT FROM celeriac.runs AS pruned
        WHERE pruned.run_id = {row}.run_id AND pruned.pruned_at IS NOT NULL
    )"""


TERMINAL = "('completed', 'failed', 'cancelled')"
"""The statuses of a run that has ended, for an SQL `IN`."""
