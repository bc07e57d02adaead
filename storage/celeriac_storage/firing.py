"""Starting the runs of schedules whose time has come, each time once.

What came of a time is a row with the schedule and the time as its key, written in the transaction
that starts the run and moves the schedule on to its next time. So however many schedulers there
are, and wherever one of them dies, there is either all of it or nothing. The run's start key says
the same once more.

Rows are locked in this order: the schedule (never waited for), the run before, the thread of the
new run.
"""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from celeriac.codec import JsonValue, dumps
from celeriac.cron import Cron
from celeriac.errors import CeleriacError, Conflict, DatabaseUnavailable
from celeriac.ids import RunId, ScheduleId, TenantId, UserId, new_run_id, new_thread_id
from celeriac.reports import ScheduleFire
from celeriac.schedule import CatchUp, Overlap
from celeriac_storage import audit_trail, dispatch, requests, schedules, starting

ON_TIME = timedelta(minutes=1)
"""A time that is found so late, or less, was not missed."""
MAX_QUEUED = 1000
"""Times of one schedule that may wait for the run before; more of them are skipped."""

Key = tuple[TenantId, ScheduleId]


@dataclass(frozen=True, slots=True)
class _Schedule:
    tenant_id: TenantId
    schedule_id: ScheduleId
    user_id: UserId
    agent: str
    input: JsonValue
    cron: Cron
    overlap: Overlap
    catch_up: CatchUp
    catch_up_limit: int
    jitter_seconds: float
    next_fire_at: datetime | None


# The run of the latest time that started one: without overlaps, no earlier one can go on.
_ACTIVE = """
    SELECT run.run_id FROM (
        SELECT run_id FROM celeriac.schedule_fires AS started
        WHERE (started.tenant_id, started.schedule_id) = (fire.tenant_id, fire.schedule_id)
            AND started.outcome = 'started'
        ORDER BY started.fired_at DESC LIMIT 1
    ) AS latest JOIN celeriac.runs AS run USING (run_id)
    WHERE finished_at IS NULL
"""


def due(connection: Connection, limit: int = 100) -> list[Key]:
    """The schedules whose time has come, and those in which one waits for a run that has ended:
    for `fire`, a transaction for each."""
    rows = connection.exec_driver_sql(
        f"""
        (SELECT tenant_id, schedule_id FROM celeriac.schedules
        WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT %(limit)s)
        UNION
        (SELECT DISTINCT tenant_id, schedule_id FROM celeriac.schedule_fires AS fire
        WHERE outcome = 'queued' AND NOT EXISTS ({_ACTIVE}) LIMIT %(limit)s)
        """,
        {"limit": limit},
    )
    return [(TenantId(row[0]), ScheduleId(row[1])) for row in rows]


def fire(connection: Connection, key: Key) -> None:
    """Do what is due in the schedule. Needs a transaction. A schedule that somebody has locked is
    theirs."""
    schedule = _lock(connection, key)
    if schedule is None:
        return
    now = dispatch.now(connection)
    if schedule.next_fire_at is not None and schedule.next_fire_at <= now:
        for scheduled_at in _to_fire(schedule, schedule.next_fire_at, now):
            _come(connection, schedule, scheduled_at)
        _move_on(connection, schedule, now)
    _start_queued(connection, schedule)


def trigger(
    connection: Connection, tenant_id: TenantId, schedule_id: ScheduleId, by: UserId
) -> ScheduleFire:
    """Do now what the schedule does at its times, also while it is paused; what came of it. Needs a
    transaction. Its next time stays what it is. Raises `UnknownSchedule`."""
    schedules.lock(connection, tenant_id, schedule_id)
    schedule = _read(connection, (tenant_id, schedule_id))
    assert schedule is not None, "it is locked"
    now = dispatch.now(connection)
    _come(connection, schedule, now, by)
    _start_queued(connection, schedule)
    audit_trail.note(connection, tenant_id, by, "schedule.trigger", schedule_id)
    return schedules.read(connection, tenant_id, schedule_id).fires[0]


def _lock(connection: Connection, key: Key) -> _Schedule | None:
    locked = connection.exec_driver_sql(
        "SELECT FROM celeriac.schedules WHERE tenant_id = %s AND schedule_id = %s"
        " AND removed_at IS NULL FOR UPDATE SKIP LOCKED",
        key,
    ).fetchone()
    return None if locked is None else _read(connection, key)


def _read(connection: Connection, key: Key) -> _Schedule | None:
    row: Any = connection.exec_driver_sql(
        """
        SELECT user_id, agent, input, cron, time_zone, overlap, catch_up, catch_up_limit,
            jitter_seconds, CASE WHEN due_at <= clock_timestamp() THEN next_fire_at END
        FROM celeriac.schedules
        WHERE tenant_id = %s AND schedule_id = %s AND removed_at IS NULL
        """,
        key,
    ).fetchone()
    if row is None:
        return None
    user_id, agent, input_, cron, time_zone, *rest = row
    return _Schedule(*key, UserId(user_id), agent, input_, Cron(cron, time_zone), *rest)


def _to_fire(schedule: _Schedule, since: datetime, now: datetime) -> list[datetime]:
    """The times from `since` on that count, in order."""
    limit = schedule.catch_up_limit if schedule.catch_up == "all" else 1
    times = schedule.cron.latest(since, now, limit)
    if schedule.catch_up == "none":
        allowed = ON_TIME + timedelta(seconds=schedule.jitter_seconds)
        times = [each for each in times if now - each <= allowed]
    return times


def _move_on(connection: Connection, schedule: _Schedule, now: datetime) -> None:
    following = schedule.cron.next_after(now)
    due_at = None
    if following is not None:
        due_at = schedules.jittered(following, schedule.jitter_seconds)
    connection.exec_driver_sql(
        "UPDATE celeriac.schedules SET next_fire_at = %s, due_at = %s"
        " WHERE tenant_id = %s AND schedule_id = %s AND next_fire_at = %s",
        (following, due_at, schedule.tenant_id, schedule.schedule_id, schedule.next_fire_at),
    )


def _come(
    connection: Connection,
    schedule: _Schedule,
    scheduled_at: datetime,
    by: UserId | None = None,
) -> None:
    """A time of the schedule has come."""
    outcome = "skipped" if _is_left_out(connection, schedule) else "queued"
    if schedule.overlap == "cancel_running":
        _skip_queued(connection, schedule)
        _cancel(connection, _active(connection, schedule))
    connection.exec_driver_sql(
        """
        INSERT INTO celeriac.schedule_fires (tenant_id, schedule_id, scheduled_at, triggered_by,
            outcome)
        VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
        """,
        (schedule.tenant_id, schedule.schedule_id, scheduled_at, by, outcome),
    )
    if schedule.overlap != "queue":
        _start_queued(connection, schedule)


def _is_left_out(connection: Connection, schedule: _Schedule) -> bool:
    if schedule.overlap == "queue":
        return _count_queued(connection, schedule) >= MAX_QUEUED
    return schedule.overlap == "skip" and _active(connection, schedule) is not None


def _start_queued(connection: Connection, schedule: _Schedule) -> None:
    """Start the runs of the times that have come, as far as the run before allows it."""
    rows = connection.exec_driver_sql(
        "SELECT scheduled_at FROM celeriac.schedule_fires"
        " WHERE tenant_id = %s AND schedule_id = %s AND outcome = 'queued' ORDER BY scheduled_at",
        (schedule.tenant_id, schedule.schedule_id),
    ).all()
    for (scheduled_at,) in rows:
        if schedule.overlap != "allow" and _active(connection, schedule) is not None:
            return
        _start(connection, schedule, scheduled_at)


def _start(connection: Connection, schedule: _Schedule, scheduled_at: datetime) -> None:
    # Here, because messages bring in pydantic-ai, which a scheduler needs for nothing else.
    from celeriac_storage.admitting import RunSpec, admit

    run_id = new_run_id()
    spec = RunSpec(
        schedule.agent,
        schedule.input,
        run_id=run_id,
        thread_id=new_thread_id(),
        user_id=schedule.user_id,
        tenant_id=schedule.tenant_id,
        start_key=schedules.start_key(schedule.schedule_id, scheduled_at),
    )
    error: dict[str, JsonValue] | None = None
    try:
        with connection.begin_nested():
            starting.start(connection, admit(connection, spec))
    except DatabaseUnavailable:
        raise
    except CeleriacError as refused:
        # The agent does not take this input any more, or nobody knows it: people see it here.
        error = {"kind": type(refused).__name__, "message": str(refused)}
    connection.exec_driver_sql(
        """
        UPDATE celeriac.schedule_fires SET outcome = %(outcome)s, run_id = %(run_id)s,
            error = %(error)s::jsonb, fired_at = clock_timestamp()
        WHERE tenant_id = %(tenant_id)s AND schedule_id = %(schedule_id)s
            AND scheduled_at = %(scheduled_at)s AND outcome = 'queued'
        """,
        {
            "outcome": "started" if error is None else "refused",
            "run_id": run_id if error is None else None,
            "error": None if error is None else dumps(error),
            "tenant_id": schedule.tenant_id,
            "schedule_id": schedule.schedule_id,
            "scheduled_at": scheduled_at,
        },
    )


def _active(connection: Connection, schedule: _Schedule) -> RunId | None:
    """The run of an earlier time that has not ended."""
    run_id = connection.exec_driver_sql(
        f"""
        SELECT run_id FROM (VALUES (%s::text, %s::text)) AS fire (tenant_id, schedule_id),
            LATERAL ({_ACTIVE}) AS active
        """,
        (schedule.tenant_id, schedule.schedule_id),
    ).scalar()
    return None if run_id is None else RunId(run_id)


def _cancel(connection: Connection, run_id: RunId | None) -> None:
    if run_id is not None:
        with suppress(Conflict):  # it has ended meanwhile
            requests.request_cancel(connection, run_id, UserId("schedule"))


def _skip_queued(connection: Connection, schedule: _Schedule) -> None:
    connection.exec_driver_sql(
        "UPDATE celeriac.schedule_fires SET outcome = 'skipped'"
        " WHERE tenant_id = %s AND schedule_id = %s AND outcome = 'queued'",
        (schedule.tenant_id, schedule.schedule_id),
    )


def _count_queued(connection: Connection, schedule: _Schedule) -> int:
    count: int = connection.exec_driver_sql(
        "SELECT count(*) FROM celeriac.schedule_fires"
        " WHERE tenant_id = %s AND schedule_id = %s AND outcome = 'queued'",
        (schedule.tenant_id, schedule.schedule_id),
    ).scalar_one()
    return count
