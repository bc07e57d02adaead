"""`/v1/runs`: start runs, look at them, and tell them something while they go on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection

from celeriac import traceparent
from celeriac.client import people
from celeriac.client.call import Resolve, Submit
from celeriac.client.continuing import Fork, Retry
from celeriac.client.executing import RetryPlan
from celeriac.client.operation import Operation
from celeriac.client.starting import Start
from celeriac.client.steering import Cancel, Interrupt, Say, SendEvent
from celeriac.client.undoing import RollBack
from celeriac.errors import UnknownThread, WrongOwner
from celeriac.ids import CallId, RunId, ThreadId, UserId, new_run_id, new_thread_id
from celeriac.reports import RunLine, Started
from celeriac.states import RunStatus
from celeriac.workspace.receipts import Receipt
from celeriac_api.authentication import CurrentCaller
from celeriac_api.authorization import require, require_run, sees_all, user_to_see, visible_run
from celeriac_api.caller import Caller, service_of
from celeriac_api.idempotency import CurrentOrder, Order, Reply
from celeriac_api.models import runs as models
from celeriac_api.models.body import MOST, Nothing
from celeriac_api.models.calls import CallResult, Calls, ResolveCall, Results
from celeriac_api.models.responses import answers
from celeriac_api.pages import Cursor, Limit, cursor_after, cut, place_of
from celeriac_api.requests import JsonRoute, json_response
from celeriac_storage import inbox, plans, reading, run_list, run_report, stages, submitting
from celeriac_storage.admitting import RunSpec
from celeriac_storage.ownership import owner_of_run
from celeriac_storage.resolving import NotDone, TookEffect
from celeriac_storage.submitting import Failed, Result

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=JsonRoute)

_STANDS = answers(200, models.StandsAt, "Where the run stands now")
TextFilter = Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00]*$")]
IdFilter = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9._@-]{1,128}$")]


@router.post(
    "",
    status_code=201,
    responses=answers(201, models.StartedModel, "The run; its address is in Location"),
)
def start_run(body: models.StartRun, order: CurrentOrder) -> Response:
    """Start a run of an agent. With `on_busy: "say"` the input may be told to another run instead,
    whose id is then answered."""
    if body.run_id is None:
        order.require_key()
    caller, service = order.caller, service_of(order.request)
    user_id = caller.user_id if body.user_id is None else UserId(body.user_id)
    spec = RunSpec(
        body.agent,
        body.input,
        run_id=new_run_id() if body.run_id is None else RunId(body.run_id),
        thread_id=new_thread_id() if body.thread_id is None else ThreadId(body.thread_id),
        user_id=user_id,
        tenant_id=caller.tenant_id,
        on_busy=body.on_busy,
        limits=None if body.limits is None else body.limits.to_limits(),
        start_at=body.start_at,
        delay=_span(body.delay_seconds),
        deadline=body.deadline or _span(body.deadline_seconds),
        is_published=service.first_step is not None,
        traceparent=traceparent.current()
        or traceparent.checked(order.request.headers.get("traceparent")),
        by=caller.user_id,
    )

    def check(_: Connection) -> None:
        require(caller, order.action, is_own=user_id == caller.user_id)

    try:
        return order.carry_out(Start(spec, service.first_step), _started, check)
    except WrongOwner as error:
        if sees_all(caller, "show_thread"):
            raise
        # Whose thread it is, and that there is one, is nobody else's business.
        raise UnknownThread(f"there is no thread {spec.thread_id} of yours") from error


@router.get("", responses=answers(200, models.RunPage, "The newest runs first"))
def list_runs(
    request: Request,
    caller: CurrentCaller,
    status: RunStatus | None = None,
    agent: TextFilter = None,
    outcome: TextFilter = None,
    search: Annotated[
        str | None,
        Query(
            max_length=200,
            pattern=r"^[^\x00]+$",
            description="The begin of a run's id, or a text of its input.",
        ),
    ] = None,
    thread_id: IdFilter = None,
    user_id: IdFilter = None,
    activities: Annotated[bool, Query(description="Also those of workflows' activities.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List runs, the newest first: your own, or all of the tenant for an operator."""
    filters = RunFilters(status, agent, outcome, search, thread_id, user_id, activities)
    runs, next_cursor = page_of_runs(request, caller, filters, limit, cursor)
    return json_response({"runs": list(runs), "next_cursor": next_cursor})


@dataclass(frozen=True, slots=True)
class RunFilters:
    """Which runs a list holds; what is None does not matter."""

    status: RunStatus | None = None
    agent: str | None = None
    outcome: str | None = None
    search: str | None = None
    thread_id: str | None = None
    user_id: str | None = None
    with_activities: bool = False


def page_of_runs(
    request: Request, caller: Caller, filters: RunFilters, limit: int, cursor: str | None
) -> tuple[Sequence[RunLine], str | None]:
    """The runs that the caller may see, and the cursor of the next page."""
    place = place_of(cursor)
    thread_id = filters.thread_id
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        found = run_list.list_runs(
            connection,
            tenant_id=caller.tenant_id,
            user_id=user_to_see(caller, "list_runs", filters.user_id),
            thread_id=None if thread_id is None else ThreadId(thread_id),
            status=filters.status,
            with_activities=filters.with_activities,
            agent=filters.agent,
            outcome=filters.outcome,
            search=filters.search,
            before=None if place is None else (place[0], RunId(place[1])),
            limit=limit + 1,
        )
    runs, has_more = cut(found, limit)
    return runs, cursor_after(runs[-1].created_at, runs[-1].run_id) if has_more else None


@router.get("/{run_id}", responses=answers(200, models.RunModel, "The run"))
def show_run(request: Request, run_id: str, caller: CurrentCaller) -> Response:
    """One run with all that came of it so far."""
    run = visible_run(request, run_id, "show_run")
    transactions = service_of(request).tenant(caller.tenant_id)
    with transactions.begin() as connection:
        report = run_report.read_run(connection, run)
    if any(proposal.status == "pending" for proposal in report.approvals):
        people.show_approvals(  # records that they are shown
            transactions, caller.tenant_id, status="pending", run_id=run, limit=100,
            to=caller.user_id,
        )  # fmt: skip
    return json_response(report)


@router.get("/{run_id}/calls", responses=answers(200, Calls, "The calls, the oldest first"))
def list_calls(request: Request, run_id: str, caller: CurrentCaller) -> Response:
    """The calls of the run that another process is to execute."""
    run = visible_run(request, run_id, "show_run")
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        return json_response({"calls": submitting.requested_calls(connection, run)})


@router.get("/{run_id}/wait", responses=answers(200, models.WaitModel, "What it waits for"))
def show_wait(request: Request, run_id: str, caller: CurrentCaller) -> Response:
    """What a run that nobody works on just now waits for, and how far its history is."""
    run = visible_run(request, run_id, "show_run")
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        return json_response(reading.read_wait(connection, run))


@router.get(
    "/{run_id}/replay", responses=answers(200, models.ReplayModel, "Each thing once, by number")
)
def replay_run(
    request: Request,
    run_id: str,
    caller: CurrentCaller,
    step: Annotated[int | None, Query(ge=0, le=MOST)] = None,
) -> Response:
    """What the run's model was sent at each step, or at one, and what it answered, made of what is
    stored. Nothing is asked of a model or a tool."""
    # Here: it reads messages as pydantic-ai does, whose import the API's start need not wait for.
    from celeriac_tasks.replaying import replay

    run = visible_run(request, run_id, "replay_run")
    service = service_of(request)
    with service.tenant(caller.tenant_id).begin() as connection:
        owner = owner_of_run(connection, caller.tenant_id, run)
    with service.tenant(caller.tenant_id, [owner or ""]).begin() as connection:
        return json_response(replay(connection, run, step))


@router.get(
    "/{run_id}/diff/{other_id}", responses=answers(200, models.DifferenceModel, "Where they part")
)
def compare_runs(request: Request, run_id: str, other_id: str, caller: CurrentCaller) -> Response:
    """Where two runs part, step by step, by what they said, asked for and were told."""
    left, right = (visible_run(request, each, "compare_runs") for each in (run_id, other_id))
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        return json_response(stages.difference(connection, left, right))


@router.post("/{run_id}/cancel", responses=_STANDS)
def cancel_run(run_id: str, order: CurrentOrder, _: Nothing | None = None) -> Response:
    """End the run. A step in progress is recorded first, so no effect is lost."""
    return _ask(order, run_id, Cancel(RunId(run_id), order.caller.user_id))


@router.post("/{run_id}/interrupt", responses=_STANDS)
def interrupt_run(run_id: str, order: CurrentOrder, _: Nothing | None = None) -> Response:
    """Stop the run until its user says something, or it is cancelled."""
    return _ask(order, run_id, Interrupt(RunId(run_id), order.caller.user_id))


@router.post(
    "/{run_id}/messages",
    status_code=202,
    responses=answers(202, models.StandsAt, "The model is told it when it is asked next"),
)
def say_to_run(run_id: str, body: models.Message, order: CurrentOrder) -> Response:
    """Tell the run something while it goes on."""
    if body.key is None:
        order.require_key()
        word = None
    else:
        word = inbox.key_of_word(RunId(run_id), body.key)
    by = order.caller.user_id
    return _ask(order, run_id, Say(RunId(run_id), body.text, by, word), status=202)


@router.post(
    "/{run_id}/events",
    status_code=202,
    responses=answers(202, models.StandsAt, "The workflow's code is told when it waits for it"),
)
def send_event(run_id: str, body: models.SentEvent, order: CurrentOrder) -> Response:
    """Tell a workflow that something has happened."""
    if body.key is None:
        order.require_key()
    by = order.caller.user_id
    return _ask(
        order, run_id, SendEvent(RunId(run_id), body.name, body.data, by, body.key), status=202
    )


@router.post("/{run_id}/retry", responses=_STANDS)
def retry_run(run_id: str, order: CurrentOrder, _: Nothing | None = None) -> Response:
    """Let a run that needs attention try its step again. Of one that has failed, start the run that
    tries its last step again, unless it was started before: its id is answered."""
    first_step = service_of(order.request).first_step
    return order.carry_out(
        Retry(RunId(run_id), order.caller.user_id, first_step),
        lambda retried: Reply(200, retried),
        lambda connection: require_run(connection, order.caller, order.action, RunId(run_id)),
    )


@router.post(
    "/{run_id}/fork",
    status_code=201,
    responses=answers(201, models.StartedModel, "The run that goes on, in Location"),
)
def fork_run(run_id: str, body: models.ForkRun, order: CurrentOrder) -> Response:
    """Start a run that goes on from where this one stood before a step, in a thread of its own.
    What was done since is done again, under other idempotency keys."""
    order.require_key()
    first_step = service_of(order.request).first_step
    return order.carry_out(
        Fork(RunId(run_id), body.at, order.caller.user_id, first_step),
        _started,
        lambda connection: require_run(connection, order.caller, order.action, RunId(run_id)),
    )


@router.get("/{run_id}/plan", responses=answers(200, models.PlanModel, "The plan"))
def show_plan(request: Request, run_id: str, caller: CurrentCaller) -> Response:
    """The plan that the run executes, with the state of each step, by layer."""
    run = visible_run(request, run_id, "show_plan")
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        return json_response(plans.report(connection, run))


@router.post(
    "/{run_id}/plan/retry",
    status_code=201,
    responses=answers(201, models.StartedModel, "The run that does what is left, in Location"),
)
def retry_plan(run_id: str, order: CurrentOrder, body: models.RetryPlan | None = None) -> Response:
    """Do what is left of the plan of a run that has ended, or of that plan as it was edited: starts
    a run, which keeps what was completed and is still the same."""
    first_step = service_of(order.request).first_step
    plan = None if body is None else body.plan
    return order.carry_out(
        RetryPlan(RunId(run_id), order.caller.user_id, plan, first_step),
        _started,
        lambda connection: require_run(connection, order.caller, order.action, RunId(run_id)),
    )


@router.post(
    "/{run_id}/rollback",
    status_code=201,
    responses=answers(201, models.StartedModel, "The run that undoes it, in Location"),
)
def roll_back_run(
    run_id: str, order: CurrentOrder, body: models.RollBackRun | None = None
) -> Response:
    """Undo what the run did, each call once: starts a run that does."""
    first_step = service_of(order.request).first_step
    from_step = 0 if body is None else body.from_step
    return order.carry_out(
        RollBack(RunId(run_id), from_step, order.caller.user_id, first_step),
        _started,
        lambda connection: require_run(connection, order.caller, order.action, RunId(run_id)),
    )


@router.post("/{run_id}/results", responses=_STANDS)
def submit_results(run_id: str, body: Results, order: CurrentOrder) -> Response:
    """Tell what came of calls that another process has executed: all of them are recorded, or none.

    To submit the same again is no error; a result that is there is never replaced.
    """
    results = {CallId(each.call_id): _result(each) for each in body.results}
    return _ask(order, run_id, Submit(RunId(run_id), results, order.caller.user_id))


def _result(told: CallResult) -> Result:
    if "receipt" in told.model_fields_set:
        return Receipt(told.receipt)
    return told.result if told.error is None else Failed(told.error)


@router.post("/{run_id}/resolve", responses=_STANDS)
def resolve_call(run_id: str, body: ResolveCall, order: CurrentOrder) -> Response:
    """Say what came of a call whose outcome is unknown; the run then goes on."""
    resolution = TookEffect(body.committed) if body.has_committed else NotDone()
    by = order.caller.user_id
    return _ask(order, run_id, Resolve(RunId(run_id), CallId(body.call_id), resolution, by))


def _ask(
    order: Order, run_id: str, operation: Operation[RunStatus], *, status: int = 200
) -> Response:
    return order.carry_out(
        operation,
        lambda stands: Reply(status, {"run_id": run_id, "status": stands}),
        lambda connection: require_run(connection, order.caller, order.action, RunId(run_id)),
    )


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _started(started: Started) -> Reply:
    return Reply(201, started, {"Location": f"/v1/runs/{started.run_id}"})
