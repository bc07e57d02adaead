"""The list of runs, one run as it goes on, and what its user may tell it."""

import json
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException

from celeriac.ids import RunId
from celeriac.states import EffectState, RunStatus
from celeriac_api import runs as api
from celeriac_api.authorization import RULES, role_of, visible_run
from celeriac_api.caller import service_of
from celeriac_api.console import budgets, family, plan_picture, timeline
from celeriac_api.console.forms import PostedForm, body_of, json_value
from celeriac_api.console.pages import PageRoute, render, see
from celeriac_api.console.sessions import CurrentUser
from celeriac_api.console.words import waiting_for
from celeriac_api.models.body import MOST
from celeriac_api.models.calls import ResolveCall
from celeriac_api.models.runs import Message, SentEvent
from celeriac_api.pages import Cursor
from celeriac_api.streaming import routes as streaming
from celeriac_storage import plans, run_report, timelines, workflow_log

router = APIRouter(prefix="/runs", route_class=PageRoute)

RUNS_SHOWN = 50
ALL_EVENTS = 20_000

TextQuery = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")]


@router.get("", name="list_runs")
def runs_page(
    request: Request,
    caller: CurrentUser,
    status: TextQuery = "",
    agent: TextQuery = "",
    outcome: TextQuery = "",
    search: TextQuery = "",
    thread_id: TextQuery = "",
    user_id: TextQuery = "",
    activities: bool = False,
    cursor: Cursor = None,
) -> Response:
    """An empty filter, as a form sends it, is none."""
    if status and status not in {*RunStatus}:
        raise HTTPException(400, f"{status} is no status of a run")
    filters = api.RunFilters(
        RunStatus(status) if status else None,
        agent.strip() or None,
        outcome.strip() or None,
        search.strip() or None,
        thread_id.strip() or None,
        user_id.strip() or None,
        activities,
    )
    found, next_cursor = api.page_of_runs(request, caller, filters, RUNS_SHOWN, cursor or None)
    return render(
        request, "runs.html", runs=found, next_cursor=next_cursor, filters=filters,
        statuses=list(RunStatus), is_first=not cursor,
    )  # fmt: skip


@router.get("/{run_id}", name="show_run")
def run_page(
    request: Request,
    run_id: str,
    caller: CurrentUser,
    history: TextQuery = "",
    generation: Annotated[int | None, Query(ge=0, le=MOST)] = None,
) -> Response:
    run = visible_run(request, run_id, "show_run")
    with service_of(request).tenant(caller.tenant_id).begin() as connection:
        report = run_report.read_run(connection, run)
        limit = ALL_EVENTS if history == "all" else timelines.EVENTS_SHOWN
        told = timelines.read_timeline(connection, run, limit)
        latest = workflow_log.generation_of(connection, run)
        shown = latest if generation is None else min(generation, latest)
        log = report.activities
        if shown != latest:
            log = workflow_log.read_log(connection, run, shown)
        plan = plans.report(connection, run) if plans.is_shown(connection, run) else None
        awaited = budgets.awaited_by(connection, caller, run, report.user_id)
    return render(
        request,
        "run.html",
        run=report,
        timeline=told,
        items=timeline.items(report, told),
        family=family.branches_below(report),
        log=log,
        generation=shown,
        latest_generation=latest,
        plan=plan,
        picture=plan and plan_picture.picture_of(plan.steps),
        open_calls=timeline.open_calls(report),
        waiting=waiting_for(report, told.wait),
        awaited_budget=awaited,
        pending={each.call_id: each for each in report.approvals if each.status == "pending"},
        event_types=_event_types(),
        may_resolve=role_of(caller) >= RULES["resolve_call"].own,
        can_be_rolled_back=_can_be_rolled_back(report.status, report.effects, report.kind),
        flower_url=(service_of(request).settings.flower_url or "").rstrip("/"),
        **budgets.how_shown(caller),
    )


@cache
def _event_types() -> tuple[str, ...]:
    """On each of which the page looks again."""
    # Only here: the models of all events take longer to make than any other module of the API.
    from celeriac.events import event_types

    return tuple(event_types())


@router.get("/{run_id}/events", name="follow_events")
async def run_events(
    request: Request,
    run_id: str,
    after: int = 0,
) -> Response:
    """The API's own stream, for the page of the run."""
    return await streaming.follow_events(
        request, run_id, after, last_event_id=request.headers.get("last-event-id")
    )


@router.post("/{run_id}/cancel", name="cancel_run")
def cancel(run_id: str, form: PostedForm) -> Response:
    api.cancel_run(run_id, form.order())
    return _back(run_id)


@router.post("/{run_id}/interrupt", name="interrupt_run")
def interrupt(run_id: str, form: PostedForm) -> Response:
    api.interrupt_run(run_id, form.order())
    return _back(run_id)


@router.post("/{run_id}/retry", name="retry_run")
def retry(run_id: str, form: PostedForm) -> Response:
    """Leads to the run that goes on."""
    answer = api.retry_run(run_id, form.order())
    return _back(json.loads(bytes(answer.body))["run_id"])


@router.post("/{run_id}/plan/retry", name="retry_plan")
def retry_plan(run_id: str, form: PostedForm) -> Response:
    """Leads to the run that does what is left."""
    started = api.retry_plan(run_id, form.order())
    return see(started.headers["Location"].removeprefix("/v1"))


@router.post("/{run_id}/messages", name="say_to_run")
def say(run_id: str, form: PostedForm) -> Response:
    body = body_of(Message, text=form.text("text"))
    api.say_to_run(run_id, body, form.order(body))
    return _back(run_id)


@router.post("/{run_id}/events", name="send_event")
def send_event(run_id: str, form: PostedForm) -> Response:
    body = body_of(
        SentEvent, name=form.text("name"), data=json_value(form.text("data"), "what to tell")
    )
    api.send_event(run_id, body, form.order(body))
    return _back(run_id)


@router.post("/{run_id}/rollback", name="roll_back_run")
def roll_back(run_id: str, form: PostedForm) -> Response:
    """Leads to the run that undoes this one."""
    started = api.roll_back_run(run_id, form.order())
    return see(started.headers["Location"].removeprefix("/v1"))


@router.post("/{run_id}/resolve", name="resolve_call")
def resolve(run_id: str, form: PostedForm) -> Response:
    body = body_of(
        ResolveCall,
        call_id=form.text("call_id"),
        **(
            {"not_done": True}
            if form.text("outcome") == "not_done"
            else {"committed": json_value(form.text("committed"), "the result")}
        ),
    )
    api.resolve_call(run_id, body, form.order(body))
    return _back(run_id)


def _back(run_id: str) -> Response:
    return see(f"/runs/{RunId(run_id)}")


def _can_be_rolled_back(status: RunStatus, effects: object, kind: str) -> bool:
    """Whether it makes sense to offer it; the request itself is checked."""
    assert isinstance(effects, list)
    return (
        kind == "agent"
        and (status.is_terminal or status in (RunStatus.NEEDS_ATTENTION, RunStatus.PAUSED))
        and any(
            each.state in (EffectState.COMMITTED, EffectState.KNOWN_BAD) and each.kind != "none"
            for each in effects
        )
    )
