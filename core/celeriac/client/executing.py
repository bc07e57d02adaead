"""What clients ask about plans."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from celeriac.client import starting
from celeriac.client.ask import Ask
from celeriac.client.continuing import publish, retry_plan_within
from celeriac.client.first_step import FirstStep
from celeriac.client.named import run_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Flow, get, one, refuse_speaker
from celeriac.client.run import ask_run, read_started
from celeriac.ids import RunId, UserId, new_run_id
from celeriac.limits import Limits
from celeriac.reports import Started
from celeriac_storage import forks
from celeriac_storage.tenancy import Transactions

if TYPE_CHECKING:
    from celeriac.agent import Agent
    from celeriac.client.database import DatabaseDesk
    from celeriac.codec import JsonValue
    from celeriac.plan import Plan
    from celeriac.plan.report import PlanReport

DEFAULT_RUNNER = "plans"


@dataclass(slots=True)
class RetryPlan(Operation[Started]):
    """Start the run that does what is left of a plan. `first_step` as with `Start`."""

    run_id: RunId
    by: UserId
    plan: "JsonValue" = None  # None: as it was
    first_step: FirstStep | None = None
    retry_id: RunId = field(default_factory=new_run_id)
    _forked: forks.Forked | None = field(default=None, init=False)

    def act(self, connection: Connection) -> Started:
        is_published = self.first_step is not None
        self._forked = forked = retry_plan_within(
            connection, self.run_id, self.by, self.retry_id, self.plan, is_published=is_published
        )
        started = forked.started
        return Started(forked.run_id, forked.thread_id, started.status, started.phase)

    def finish(self, transactions: Transactions) -> None:
        publish(self._forked, self.first_step, transactions)


def start_plan(
    plan: "Plan | Mapping[str, JsonValue]",
    *,
    runner: "str | Agent" = DEFAULT_RUNNER,
    thread_id: str | None = None,
    user_id: str | None = None,
    run_id: str | None = None,
    limits: Limits | None = None,
    start_at: datetime | None = None,
    delay: timedelta | None = None,
    deadline: datetime | timedelta | None = None,
    connection: Connection | None = None,
) -> Ask[Started]:
    """Start a run that executes a plan, by the `PlanRunner` of that name (docs/plans.md).

    The plan is checked before anything is written, also against the tools and agents that the
    runner has. All else, and what is raised, is as of `start`; so an agent that executes no plans
    is given this one as any other input.
    """
    return starting.start(
        runner,
        _checked(plan),
        thread_id=thread_id,
        user_id=user_id,
        run_id=run_id,
        limits=limits,
        start_at=start_at,
        delay=delay,
        deadline=deadline,
        connection=connection,
    )


def get_plan(run_id: str) -> "Ask[PlanReport]":
    """The plan that a run executes, with the state of each step, by layer.

    Raises `UnknownRun`, or `InvalidInput` if it executes none.
    """
    run = run_named(run_id)

    def in_database(desk: "DatabaseDesk") -> "PlanReport":
        # Here, because plans bring in what they are checked by.
        from celeriac_storage import plans

        return desk.read(lambda connection: plans.report(connection, run), run)

    def over_http() -> "Flow[PlanReport]":
        from celeriac.plan.report import PlanReport

        return (yield from one(get(f"/v1/runs/{run}/plan"), reader(PlanReport)))

    return Ask(in_database, over_http)


def retry_plan(
    run_id: str,
    plan: "Plan | Mapping[str, JsonValue] | None" = None,
    *,
    by: str | None = None,
) -> Ask[Started]:
    """Start a run that does what is left of the plan of a run that has ended; or, with `plan`, of
    that plan as it was edited.

    A step is not made again if it was completed, and it and all that it depends on are the same.
    To ask for the same again changes nothing, and returns the run that was started. Raises
    `UnknownRun`, `InvalidInput`, or `Conflict` if the run goes on, if something is still to happen
    with one of its steps, or if another run does what is left already.
    """
    run, person = run_named(run_id), user_or_default(by)
    edited = None if plan is None else _checked(plan)

    def in_database(desk: "DatabaseDesk") -> Started:
        if desk.first_step is not None:
            desk.first_step.prepare()
        return desk.perform(RetryPlan(run, person, edited, desk.first_step), run)

    def over_http() -> Flow[Started]:
        refuse_speaker(by)
        return read_started((yield ask_run(run, "plan/retry", {"plan": edited})))

    return Ask(in_database, over_http)


def _checked(plan: "Plan | Mapping[str, JsonValue]") -> "JsonValue":
    from celeriac.plan import Plan

    return (plan if isinstance(plan, Plan) else Plan.from_json(dict(plan))).to_json()
