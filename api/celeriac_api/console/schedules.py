"""Schedules and timers: what starts or goes on when, what came of it, and changing that."""

from collections.abc import Mapping
from datetime import datetime
from zoneinfo import ZoneInfo

from fastapi import APIRouter, Request, Response

from celeriac_api import schedules as api
from celeriac_api.authorization import sees_all, user_to_see
from celeriac_api.caller import service_of
from celeriac_api.console.forms import PostedForm
from celeriac_api.console.pages import PageRoute, render, see
from celeriac_api.console.sessions import CurrentUser
from celeriac_storage import schedules, timers

router = APIRouter(prefix="/schedules", route_class=PageRoute)

FIRES_SHOWN = 6  # before the others are asked for
TIMERS_SHOWN = 100

OVERLAPS: Mapping[str, str] = {
    "skip": "this time is left out",
    "queue": "the next one starts after it",
    "cancel_running": "it is cancelled, and then the next one starts",
    "allow": "the next one starts beside it",
}
CATCH_UPS: Mapping[str, str] = {
    "none": "none is made up for",
    "last": "the last is made up for",
    "all": "the latest are made up for, so many at most:",
}
"""What a schedule's rules mean. A test compares them with the rules that there are."""


@router.get("", name="list_schedules")
def schedules_page(request: Request, caller: CurrentUser) -> Response:
    """Those of the caller, or an operator's all."""
    whose = user_to_see(caller, "list_schedules", None)
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        found = schedules.list_schedules(connection, caller.tenant_id, whose)
        waiting = timers.list_waiting(connection, caller.tenant_id, whose, TIMERS_SHOWN)
    return render(
        request,
        "schedules.html",
        schedules=found,
        timers=waiting,
        timers_shown=TIMERS_SHOWN,
        fires_shown=FIRES_SHOWN,
        overlaps=OVERLAPS,
        catch_ups=CATCH_UPS,
        in_zone=in_zone,
        sees_all=sees_all(caller, "list_schedules"),
    )


def in_zone(at: datetime, time_zone: str) -> str:
    """The time as clocks of that zone show it."""
    return f"{at.astimezone(ZoneInfo(time_zone)):%a %d %b %Y %H:%M %Z}"


@router.post("/{schedule_id}/pause", name="pause_schedule")
def pause(schedule_id: str, form: PostedForm) -> Response:
    api.pause_schedule(schedule_id, form.order())
    return _back(schedule_id)


@router.post("/{schedule_id}/resume", name="resume_schedule")
def resume(schedule_id: str, form: PostedForm) -> Response:
    api.resume_schedule(schedule_id, form.order())
    return _back(schedule_id)


@router.post("/{schedule_id}/trigger", name="trigger_schedule")
def trigger(schedule_id: str, form: PostedForm) -> Response:
    api.trigger_schedule(schedule_id, form.order())
    return _back(schedule_id)


@router.post("/{schedule_id}/remove", name="remove_schedule")
def remove(schedule_id: str, form: PostedForm) -> Response:
    api.remove_schedule(schedule_id, form.order())
    return see("/schedules")


def _back(schedule_id: str) -> Response:
    return see(f"/schedules#schedule-{schedule_id}")
