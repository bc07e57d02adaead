"""`/v1/schedules`: runs at the times of cron expressions."""

from fastapi import APIRouter, Request, Response
from sqlalchemy import Connection

from celeriac.client.operation import Answer, Operation
from celeriac.client.timing import AddSchedule, ChangeSchedule, TriggerSchedule
from celeriac.ids import ScheduleId, UserId
from celeriac.reports import Schedule
from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import require, require_schedule, user_to_see
from celeriac_api.caller import service_of
from celeriac_api.idempotency import CurrentOrder, Order, Reply
from celeriac_api.models import schedules as models
from celeriac_api.models.body import Nothing
from celeriac_api.models.responses import answers
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage import schedules

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], route_class=JsonRoute)

_STANDS = answers(200, models.ScheduleModel, "The schedule as it is now")


@router.post(
    "",
    status_code=201,
    responses=answers(201, models.ScheduleModel, "The schedule; its address is in Location"),
)
def add_schedule(body: models.AddSchedule, order: CurrentOrder) -> Response:
    """Start runs of an agent at the times of a cron expression."""
    caller = order.caller
    user_id = caller.user_id if body.user_id is None else UserId(body.user_id)

    def check(_: Connection) -> None:
        require(caller, order.action, is_own=user_id == caller.user_id)

    operation = AddSchedule(
        caller.tenant_id, ScheduleId(body.schedule_id), body.to_schedule(), user_id, caller.user_id
    )
    return order.carry_out(operation, _added, check)


@router.get("", responses=answers(200, models.Schedules, "The schedules, by name"))
def list_schedules(request: Request, caller: CurrentCaller) -> Response:
    """List schedules: your own, or all of the tenant for an operator."""
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        found = schedules.list_schedules(
            connection, caller.tenant_id, user_to_see(caller, "list_schedules", None)
        )
    return json_response({"schedules": found})


@router.get("/{schedule_id}", responses=_STANDS)
def show_schedule(request: Request, schedule_id: str, caller: CurrentCaller) -> Response:
    """One schedule, its next times, and what came of the latest."""
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        require_schedule(connection, caller, "show_schedule", schedule_id)
        found = schedules.read(connection, caller.tenant_id, ScheduleId(schedule_id))
    return json_response(found)


@router.post("/{schedule_id}/pause", responses=_STANDS)
def pause_schedule(schedule_id: str, order: CurrentOrder, _: Nothing | None = None) -> Response:
    """Let no time of it count until it is resumed."""
    caller, name = order.caller, ScheduleId(schedule_id)
    return _ask(order, name, ChangeSchedule(caller.tenant_id, name, "pause", caller.user_id))


@router.post("/{schedule_id}/resume", responses=_STANDS)
def resume_schedule(schedule_id: str, order: CurrentOrder, _: Nothing | None = None) -> Response:
    """Go on with its next time; those that have passed are not caught up."""
    caller, name = order.caller, ScheduleId(schedule_id)
    return _ask(order, name, ChangeSchedule(caller.tenant_id, name, "resume", caller.user_id))


@router.post(
    "/{schedule_id}/trigger",
    responses=answers(200, models.ScheduleFireModel, "What came of it"),
)
def trigger_schedule(schedule_id: str, order: CurrentOrder, _: Nothing | None = None) -> Response:
    """Do now what it does at its times, as its overlap policy says."""
    order.require_key()
    caller, name = order.caller, ScheduleId(schedule_id)
    return _ask(order, name, TriggerSchedule(caller.tenant_id, name, caller.user_id))


@router.delete("/{schedule_id}", responses=_STANDS)
def remove_schedule(schedule_id: str, order: CurrentOrder) -> Response:
    """End the schedule. The runs that it has started go on."""
    caller, name = order.caller, ScheduleId(schedule_id)
    return _ask(order, name, ChangeSchedule(caller.tenant_id, name, "remove", caller.user_id))


def _ask(
    order: Order,
    schedule_id: ScheduleId,
    operation: Operation[Answer],
) -> Response:
    return order.carry_out(
        operation,
        lambda answer: Reply(200, answer),
        lambda connection: require_schedule(connection, order.caller, order.action, schedule_id),
    )


def _added(schedule: Schedule) -> Reply:
    return Reply(201, schedule, {"Location": f"/v1/schedules/{schedule.schedule_id}"})
