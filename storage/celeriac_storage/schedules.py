"""Schedules: what starts which run when. `firing` starts them.

A schedule is never changed but paused, resumed and removed. To change one, remove it and add it
again, under the same name if you like: what came of its earlier times stays.

An expression is read by the code, and the instants it means are stored, so that the database only
compares instants. Its clock decides what is due.
"""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from celeriac import reports
from celeriac.codec import dumps
from celeriac.cron import Cron
from celeriac.errors import Conflict, InvalidInput, UnknownSchedule
from celeriac.ids import RunId, ScheduleId, TenantId, UserId
from celeriac.schedule import NewSchedule
from celeriac_storage import audit_trail, dispatch
from celeriac_storage.owners import know_user

FIRES_SHOWN = 20
NEXT_TIMES_SHOWN = 3


def add(
    connection: Connection,
    tenant_id: TenantId,
    new: NewSchedule,
    schedule_id: ScheduleId,
    user_id: UserId,
    by: UserId,
) -> reports.Schedule:
    """Add the schedule, to start runs of `user_id`. Needs a transaction.

    The caller has checked that the agent takes the input (`admitting`). Raises `Conflict` if there
    is a schedule of that name, and `InvalidInput` if its time never comes.
    """
    cron = Cron(new.cron, new.time_zone)
    next_fire_at = cron.next_after(dispatch.now(connection))
    if next_fire_at is None:
        raise InvalidInput(
            f"the time of {new.cron!r} in {new.time_zone} does not come within 50 years"
        )
    know_user(connection, tenant_id, user_id)
    added = connection.exec_driver_sql(
        """
        INSERT INTO celeriac.schedules AS schedule (tenant_id, schedule_id, user_id, agent, input,
            cron, time_zone, overlap, catch_up, catch_up_limit, jitter_seconds, next_fire_at,
            due_at, created_by)
        VALUES (%(tenant_id)s, %(schedule_id)s, %(user_id)s, %(agent)s, %(input)s::jsonb, %(cron)s,
            %(time_zone)s, %(overlap)s, %(catch_up)s, %(catch_up_limit)s, %(jitter_seconds)s,
            %(next_fire_at)s, %(due_at)s, %(by)s)
        ON CONFLICT (tenant_id, schedule_id) DO UPDATE SET user_id = EXCLUDED.user_id,
            agent = EXCLUDED.agent, input = EXCLUDED.input, cron = EXCLUDED.cron,
            time_zone = EXCLUDED.time_zone, overlap = EXCLUDED.overlap,
            catch_up = EXCLUDED.catch_up, catch_up_limit = EXCLUDED.catch_up_limit,
            jitter_seconds = EXCLUDED.jitter_seconds, next_fire_at = EXCLUDED.next_fire_at,
            due_at = EXCLUDED.due_at, created_at = clock_timestamp(),
            created_by = EXCLUDED.created_by, paused_at = NULL, removed_at = NULL
        WHERE schedule.removed_at IS NOT NULL AND schedule.user_id = EXCLUDED.user_id
        RETURNING schedule_id
        """,
        {
            "tenant_id": tenant_id,
            "schedule_id": schedule_id,
            "user_id": user_id,
            "agent": new.agent,
            "input": dumps(new.input),
            "cron": new.cron,
            "time_zone": new.time_zone,
            "overlap": new.overlap,
            "catch_up": new.catch_up,
            "catch_up_limit": new.catch_up_limit,
            "jitter_seconds": new.jitter_seconds,
            "next_fire_at": next_fire_at,
            "due_at": jittered(next_fire_at, new.jitter_seconds),
            "by": by,
        },
    ).fetchone()
    if added is None:
        raise Conflict(
            f"the name {schedule_id} of a schedule is taken; look at it with `celeriac schedules "
            f"show {schedule_id}`, remove it first, or choose another name"
        )
    audit_trail.note(
        connection, tenant_id, by, "schedule.add", schedule_id,
        agent=new.agent, user=user_id, cron=new.cron, time_zone=new.time_zone,
    )  # fmt: skip
    return read(connection, tenant_id, schedule_id)


def jittered(moment: datetime, jitter_seconds: float) -> datetime:
    """The moment and up to so many seconds more, by chance."""
    return moment + timedelta(seconds=random.uniform(0, jitter_seconds))  # noqa: S311 - no secret


def owner_of(connection: Connection, tenant_id: TenantId, schedule_id: str) -> UserId | None:
    """Whose runs the schedule starts; None if there is none."""
    owner: str | None = connection.exec_driver_sql(
        "SELECT user_id FROM celeriac.schedules"
        " WHERE tenant_id = %s AND schedule_id = %s AND removed_at IS NULL",
        (tenant_id, schedule_id),
    ).scalar()
    return None if owner is None else UserId(owner)


def unknown_schedule(schedule_id: str) -> UnknownSchedule:
    return UnknownSchedule(
        f"there is no schedule {schedule_id}; `celeriac schedules list` lists them"
    )


def read(connection: Connection, tenant_id: TenantId, schedule_id: ScheduleId) -> reports.Schedule:
    """The schedule, and what came of its latest times. Raises `UnknownSchedule`."""
    found = _select(connection, tenant_id, "schedule_id = %(schedule_id)s", schedule_id=schedule_id)
    if not found:
        raise unknown_schedule(schedule_id)
    return found[0]


def list_schedules(
    connection: Connection, tenant_id: TenantId, user_id: UserId | None = None
) -> list[reports.Schedule]:
    """The tenant's schedules, or those of one user, by name."""
    return _select(
        connection, tenant_id, "user_id = coalesce(%(user_id)s::text, user_id)", user_id=user_id
    )


def pause(
    connection: Connection, tenant_id: TenantId, schedule_id: ScheduleId, by: UserId
) -> reports.Schedule:
    """Let no time of it count until it is resumed. Needs a transaction. Pausing it again changes
    nothing. Raises `UnknownSchedule`."""
    return _change(
        connection, tenant_id, schedule_id, by, "schedule.pause",
        "paused_at = coalesce(paused_at, clock_timestamp()), next_fire_at = NULL, due_at = NULL",
    )  # fmt: skip


def resume(
    connection: Connection, tenant_id: TenantId, schedule_id: ScheduleId, by: UserId
) -> reports.Schedule:
    """Let it go on with its next time from now. Those that have passed meanwhile are not caught up.
    Needs a transaction. Raises `UnknownSchedule`."""
    schedule = lock(connection, tenant_id, schedule_id)
    if not schedule.paused:
        return schedule
    next_fire_at = Cron(schedule.cron, schedule.time_zone).next_after(dispatch.now(connection))
    return _change(
        connection, tenant_id, schedule_id, by, "schedule.resume",
        "paused_at = NULL, next_fire_at = %(next_fire_at)s, due_at = %(due_at)s",
        next_fire_at=next_fire_at,
        due_at=None if next_fire_at is None else jittered(next_fire_at, schedule.jitter_seconds),
    )  # fmt: skip


def remove(
    connection: Connection, tenant_id: TenantId, schedule_id: ScheduleId, by: UserId
) -> reports.Schedule:
    """End the schedule; the runs that it has started go on, and what it had queued is skipped.
    Needs a transaction. Raises `UnknownSchedule`."""
    removed = _change(
        connection, tenant_id, schedule_id, by, "schedule.remove",
        "removed_at = clock_timestamp(), next_fire_at = NULL, due_at = NULL",
    )  # fmt: skip
    connection.exec_driver_sql(
        "UPDATE celeriac.schedule_fires SET outcome = 'skipped'"
        " WHERE tenant_id = %s AND schedule_id = %s AND outcome = 'queued'",
        (tenant_id, schedule_id),
    )
    return removed


def lock(connection: Connection, tenant_id: TenantId, schedule_id: ScheduleId) -> reports.Schedule:
    """Lock the schedule's row, and read it. Raises `UnknownSchedule`."""
    connection.exec_driver_sql(
        "SELECT FROM celeriac.schedules WHERE tenant_id = %s AND schedule_id = %s FOR UPDATE",
        (tenant_id, schedule_id),
    )
    return read(connection, tenant_id, schedule_id)


def _change(
    connection: Connection,
    tenant_id: TenantId,
    schedule_id: ScheduleId,
    by: UserId,
    action: str,
    changes: str,
    **values: object,
) -> reports.Schedule:
    before = lock(connection, tenant_id, schedule_id)
    connection.exec_driver_sql(
        f"UPDATE celeriac.schedules SET {changes}"
        " WHERE tenant_id = %(tenant_id)s AND schedule_id = %(schedule_id)s",
        {"tenant_id": tenant_id, "schedule_id": schedule_id, **values},
    )
    audit_trail.note(connection, tenant_id, by, action, schedule_id)
    if action == "schedule.remove":
        return before
    return read(connection, tenant_id, schedule_id)


def _select(
    connection: Connection, tenant_id: TenantId, where: str, **values: object
) -> list[reports.Schedule]:
    rows: Sequence[Any] = connection.exec_driver_sql(
        f"""
        SELECT schedule_id, user_id, agent, input, cron, time_zone, overlap, catch_up,
            catch_up_limit, jitter_seconds, paused_at IS NOT NULL, next_fire_at, created_at,
            created_by
        FROM celeriac.schedules
        WHERE tenant_id = %(tenant_id)s AND removed_at IS NULL AND {where}
        ORDER BY schedule_id
        """,
        {"tenant_id": tenant_id, **values},
    ).fetchall()
    return [
        reports.Schedule(*(*row, _next_times(row), _fires(connection, tenant_id, row[0])))
        for row in rows
    ]


def _next_times(row: Sequence[Any]) -> list[datetime]:
    cron, time_zone, next_fire_at = row[4], row[5], row[11]
    if next_fire_at is None:
        return []
    later = Cron(cron, time_zone).next_times(next_fire_at, NEXT_TIMES_SHOWN - 1)
    return [next_fire_at, *later]


def _fires(
    connection: Connection, tenant_id: TenantId, schedule_id: str
) -> list[reports.ScheduleFire]:
    rows = connection.exec_driver_sql(
        """
        SELECT scheduled_at, fired_at, triggered_by, outcome, run_id, error
        FROM celeriac.schedule_fires WHERE tenant_id = %s AND schedule_id = %s
        ORDER BY scheduled_at DESC LIMIT %s
        """,
        (tenant_id, schedule_id, FIRES_SHOWN),
    )
    return [
        reports.ScheduleFire(
            scheduled_at, fired_at, by, outcome, None if run_id is None else RunId(run_id), error
        )
        for scheduled_at, fired_at, by, outcome, run_id, error in rows
    ]


def start_key(schedule_id: str, scheduled_at: datetime) -> str:
    """What makes the run of one time of one schedule the only one."""
    return f"schedule:{schedule_id}:{scheduled_at.isoformat()}"
