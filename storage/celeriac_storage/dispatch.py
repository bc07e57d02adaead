"""Which queued steps are due to be published, again or for the first time."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from celeriac.ids import RunId

BATCH = 500


@dataclass(frozen=True, slots=True)
class Due:
    """A queued step that some worker should be told of."""

    run_id: RunId
    step: int
    queue: str


def now(connection: Connection) -> datetime:
    """The database's clock, which is the only one that counts."""
    moment: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
    return moment


def mark_unpublished(connection: Connection, run_id: RunId, step: int) -> None:
    """The broker did not take the step: whoever looks next publishes it at once."""
    connection.exec_driver_sql(
        "UPDATE celeriac.runs SET published_at = NULL"
        " WHERE run_id = %s AND step = %s AND status = 'queued'",
        (run_id, step),
    )


def pass_on(connection: Connection, run_id: RunId, step: int) -> None:
    """The message came to a worker that cannot take the step: it is published again, the first time
    at once, and then after its backoff. While a deploy goes on, most workers may be such.
    """
    connection.exec_driver_sql(
        "UPDATE celeriac.runs SET published_at = NULL"
        " WHERE run_id = %s AND step = %s AND status = 'queued' AND publish_count <= 1",
        (run_id, step),
    )


def take_unpublished(connection: Connection) -> list[Due]:
    """Queued steps that nobody has published, now marked as published. Publish them all."""
    return _take(connection, "published_at IS NULL", {})


def take_published_before(
    connection: Connection, moment: datetime, queue: str, limit: int
) -> list[Due]:
    """Queued steps of a queue whose message may be lost, because it was sent before `moment` (a
    verdict or a flush), the oldest first. Publish them all."""
    return _take(
        connection,
        "queue = %(queue)s AND published_at < %(moment)s",
        {"queue": queue, "moment": moment},
        limit,
    )


def take_overdue(
    connection: Connection, queue: str, limit: int, first_seconds: float, cap_seconds: float
) -> list[Due]:
    """Queued steps of a queue that were published longer ago than their backoff, which doubles."""
    return _take(
        connection,
        """queue = %(queue)s AND published_at < clock_timestamp() - make_interval(secs =>
            least(%(first)s * 2.0 ^ least(greatest(publish_count - 1, 0), 30), %(cap)s))""",
        {"queue": queue, "first": first_seconds, "cap": cap_seconds},
        limit,
    )


def queued_counts(connection: Connection) -> dict[str, int]:
    """How many published steps are queued, by queue."""
    rows = connection.exec_driver_sql(
        "SELECT queue, count(*) FROM celeriac.runs"
        " WHERE status = 'queued' AND published_at IS NOT NULL GROUP BY queue"
    )
    return {row[0]: row[1] for row in rows}


def _take(
    connection: Connection, where: str, parameters: dict[str, object], limit: int = BATCH
) -> list[Due]:
    """Compare-and-set on `published_at`: two schedulers never publish for the same reason."""
    rows = connection.exec_driver_sql(
        f"""
        UPDATE celeriac.runs
        SET published_at = clock_timestamp(), publish_count = publish_count + 1
        WHERE run_id IN (
            SELECT run_id FROM celeriac.runs
            WHERE status = 'queued' AND {where}
            ORDER BY published_at NULLS FIRST LIMIT %(limit)s
            FOR UPDATE SKIP LOCKED
        )
        RETURNING run_id, step, queue
        """,
        {**parameters, "limit": limit},
    )
    return [Due(*row) for row in rows]
