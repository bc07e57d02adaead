"""Addresses from which somebody asked with a token that opens nothing: at most 1,000 rows, and one
for all others (migration 0015)."""

from collections.abc import Mapping

from sqlalchemy import Connection

OTHERS = "others"
KEPT_DAYS = 7


def note(connection: Connection, attempts: Mapping[str, int]) -> None:
    """Count so many more attempts from each of these addresses."""
    connection.exec_driver_sql(
        "SELECT celeriac.note_strangers(%s::text[], %s::bigint[])",
        (list(attempts), list(attempts.values())),
    )


def forget(connection: Connection) -> int:
    """Delete the addresses that have been silent for `KEPT_DAYS`; how many there were."""
    return connection.exec_driver_sql(
        "DELETE FROM celeriac.strangers"
        " WHERE last_at < clock_timestamp() - make_interval(days => %s)",
        (KEPT_DAYS,),
    ).rowcount
