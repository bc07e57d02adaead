"""Rows that were only of use for a while."""

from celeriac_storage import console_sessions, idempotency_keys, strangers
from celeriac_storage.database import Database

FORGET_SECONDS = 5.0
BATCH = 500
"""Some 10 ms of a turn, in which a failover would wait; 100 a second are more than come in."""


def forget_expired(database: Database) -> None:
    """Forget the stored answers of requests that are too old to be repeated, silent strangers, and
    sessions of the console that are over.

    What a turn leaves, the next one takes.
    """
    with database.connect() as connection:
        idempotency_keys.prune(connection, limit=BATCH)
        strangers.forget(connection)
        console_sessions.forget(connection, limit=BATCH)
