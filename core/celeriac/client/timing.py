"""What clients ask about schedules and timers."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Connection

from celeriac.client.ask import Ask
from celeriac.client.named import schedule_named, user_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Flow, delete, get, post, refuse_speaker
from celeriac.ids import ScheduleId, TenantId, UserId, checked_id, new_run_id, new_thread_id
from celeriac.reports import Schedule, ScheduleFire, Timer
from celeriac.schedule import NewSchedule
from celeriac.schemas import strict_json
from celeriac_storage import schedules, timers

if TYPE_CHECKING:
    from celeriac.client.database import DatabaseDesk
    from celeriac.codec import JsonValue


@dataclass(frozen=True, slots=True)
class AddSchedule(Operation[Schedule]):
    """Add a schedule. The input is checked as that of a run is that starts now."""

    tenant_id: TenantId
    schedule_id: ScheduleId
    new: NewSchedule
    user_id: UserId
    by: UserId

    def act(self, connection: Connection) -> Schedule:
        from celeriac_storage.admitting import RunSpec, admit

        spec = RunSpec(
            self.new.agent,
            self.new.input,
            run_id=new_run_id(),
            thread_id=new_thread_id(),
            user_id=self.user_id,
            tenant_id=self.tenant_id,
        )
        checked = replace(self.new, input=admit(connection, spec).input)
        return schedules.add(
            connection, self.tenant_id, checked, self.schedule_id, self.user_id, self.by
        )


@dataclass(frozen=True, slots=True)
class ChangeSchedule(Operation[Schedule]):
    """Pause, resume or remove a schedule."""

    tenant_id: TenantId
    schedule_id: ScheduleId
    change: Literal["pause", "resume", "remove"]
    by: UserId

    def act(self, connection: Connection) -> Schedule:
        change = {
            "pause": schedules.pause,
            "resume": schedules.resume,
            "remove": schedules.remove,
        }[self.change]
        return change(connection, self.tenant_id, self.schedule_id, self.by)


@dataclass(frozen=True, slots=True)
class TriggerSchedule(Operation[ScheduleFire]):
    """Start a schedule's run now, besides its times."""

    tenant_id: TenantId
    schedule_id: ScheduleId
    by: UserId

    def act(self, connection: Connection) -> ScheduleFire:
        from celeriac_storage import firing

        return firing.trigger(connection, self.tenant_id, self.schedule_id, self.by)


def add_schedule(
    schedule_id: str,
    new: NewSchedule,
    *,
    user_id: str | None = None,
    by: str | None = None,
) -> Ask[Schedule]:
    """Start runs of an agent, for `user_id`, at the times of a cron expression (docs/time.md).

    The name is yours to choose. Raises `InvalidInput`, `UnknownAgent`, or `Conflict` if the
    name is taken.
    """
    name = ScheduleId(checked_id(schedule_id, "schedule's name"))
    person = user_or_default(by)
    user = None if user_id is None else user_named(user_id)

    def over_http() -> Flow[Schedule]:
        refuse_speaker(by)
        body: dict[str, JsonValue] = {
            "schedule_id": name,
            "agent": new.agent,
            "input": strict_json(new.input),
            "cron": new.cron,
            "time_zone": new.time_zone,
            "overlap": new.overlap,
            "catch_up": new.catch_up,
            "catch_up_limit": new.catch_up_limit,
            "jitter_seconds": new.jitter_seconds,
            "user_id": user,
        }
        return reader(Schedule)((yield post("/v1/schedules", body)))

    return Ask(
        lambda desk: desk.perform(
            AddSchedule(desk.tenant_id, name, new, person if user is None else user, person)
        ),
        over_http,
    )


def list_schedules() -> Ask[list[Schedule]]:
    """All schedules, by name."""

    def in_database(desk: "DatabaseDesk") -> list[Schedule]:
        return desk.read(lambda found: schedules.list_schedules(found, desk.tenant_id))

    def over_http() -> Flow[list[Schedule]]:
        told = yield get("/v1/schedules")
        return [reader(Schedule)(each) for each in told["schedules"]]

    return Ask(in_database, over_http)


def get_schedule(schedule_id: str) -> Ask[Schedule]:
    """One schedule. Raises `UnknownSchedule`."""
    name = schedule_named(schedule_id)

    def over_http() -> Flow[Schedule]:
        return reader(Schedule)((yield get(f"/v1/schedules/{name}")))

    return Ask(
        lambda desk: desk.read(lambda found: schedules.read(found, desk.tenant_id, name)), over_http
    )


def pause_schedule(schedule_id: str, *, by: str | None = None) -> Ask[Schedule]:
    """Let no time of it count until it is resumed. Raises `UnknownSchedule`."""
    return _change(schedule_id, "pause", by)


def resume_schedule(schedule_id: str, *, by: str | None = None) -> Ask[Schedule]:
    """Let it go on with its next time; none is caught up. Raises `UnknownSchedule`."""
    return _change(schedule_id, "resume", by)


def remove_schedule(schedule_id: str, *, by: str | None = None) -> Ask[Schedule]:
    """End the schedule; runs that it has started go on. Raises `UnknownSchedule`."""
    return _change(schedule_id, "remove", by)


def trigger_schedule(schedule_id: str, *, by: str | None = None) -> Ask[ScheduleFire]:
    """Do now what it does at its times, as its overlap policy says; what came of it.

    Raises `UnknownSchedule`.
    """
    name, person = schedule_named(schedule_id), user_or_default(by)

    def over_http() -> Flow[ScheduleFire]:
        refuse_speaker(by)
        if_lost = f"It is not known whether schedule {name} was triggered: look at its fires"
        fire = yield post(f"/v1/schedules/{name}/trigger", if_lost=if_lost)
        return reader(ScheduleFire)(fire)

    return Ask(lambda desk: desk.perform(TriggerSchedule(desk.tenant_id, name, person)), over_http)


def list_timers(*, limit: int = 100) -> Ask[list[Timer]]:
    """The times that runs wait for, the next one first, at most `limit` of them, up to 200 over
    HTTP."""

    def in_database(desk: "DatabaseDesk") -> list[Timer]:
        return desk.read(lambda found: timers.list_waiting(found, desk.tenant_id, limit=limit))

    def over_http() -> Flow[list[Timer]]:
        told = yield get("/v1/timers", limit=limit)
        return [reader(Timer)(each) for each in told["timers"]]

    return Ask(in_database, over_http)


def _change(
    schedule_id: str, change: Literal["pause", "resume", "remove"], by: str | None
) -> Ask[Schedule]:
    name, person = schedule_named(schedule_id), user_or_default(by)

    def over_http() -> Flow[Schedule]:
        refuse_speaker(by)
        at = f"/v1/schedules/{name}"
        asked = delete(at) if change == "remove" else post(f"{at}/{change}")
        return reader(Schedule)((yield asked))

    return Ask(
        lambda desk: desk.perform(ChangeSchedule(desk.tenant_id, name, change, person)), over_http
    )
