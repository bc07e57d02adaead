"""Runs: what starts one or is said to one, and how they are shown."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from celeriac import replay, reports
from celeriac.limits import Limits
from celeriac.plan.report import PlanReport
from celeriac.seconds import MAX_SECONDS
from celeriac_api.models.body import MOST, Body, Id, Text
from celeriac_api.models.report_model import model_of

_LIMITS = Limits()


class LimitsBody(BaseModel):
    """The most that the run may take; what is not said is as for any run."""

    model_config = ConfigDict(extra="forbid")

    steps: Annotated[int, Field(gt=0, le=MOST)] = _LIMITS.steps
    tool_calls: Annotated[int, Field(gt=0, le=MOST)] = _LIMITS.tool_calls
    tokens: Annotated[int, Field(gt=0, le=MOST)] = _LIMITS.tokens
    wall_seconds: Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)] = _LIMITS.wall_seconds
    corrections: Annotated[int, Field(gt=0, le=MOST)] = _LIMITS.corrections
    deadline_seconds: Annotated[float | None, Field(gt=0, le=MOST, allow_inf_nan=False)] = None
    depth: Annotated[int, Field(gt=0, le=MOST)] = _LIMITS.depth
    children: Annotated[int, Field(gt=0, le=MOST)] = _LIMITS.children

    def to_limits(self) -> Limits:
        return Limits(**self.model_dump())


class StartRun(Body):
    """Starts a run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "agent": "order-desk",
                    "input": {"order_id": "O-1001", "sku": "A-7", "quantity": 1},
                    "thread_id": "order-O-1001",
                }
            ]
        }
    )

    agent: Annotated[Text, Field(max_length=200)]
    input: Annotated[Any, Field(description="Any JSON that the agent's input schema takes.")]
    thread_id: Annotated[
        Id | None, Field(description="The conversation; without one the run begins a new one.")
    ] = None
    user_id: Annotated[
        Id | None, Field(description="Whose run it is; yours by default. Others' take an operator.")
    ] = None
    run_id: Annotated[
        Id | None,
        Field(
            description="An id of your own: the run never starts twice. Outside of the tenant "
            "`default` it ends in `@TENANT`."
        ),
    ] = None
    on_busy: Annotated[
        Literal["wait", "reject", "say"],
        Field(description="While another run of the thread is active."),
    ] = "wait"
    limits: LimitsBody | None = None
    start_at: Annotated[
        AwareDatetime | None, Field(description="It waits until then; without one it starts now.")
    ] = None
    delay_seconds: Annotated[
        float | None, Field(gt=0, le=MAX_SECONDS, description="The same, from now on.")
    ] = None
    deadline: Annotated[
        AwareDatetime | None, Field(description="It fails then, wherever it is.")
    ] = None
    deadline_seconds: Annotated[
        float | None, Field(gt=0, le=MAX_SECONDS, description="The same, from when it may begin.")
    ] = None

    @model_validator(mode="after")
    def _has_one_of_each(self) -> "StartRun":
        if self.start_at is not None and self.delay_seconds is not None:
            raise ValueError("say either start_at or delay_seconds")
        if self.deadline is not None and self.deadline_seconds is not None:
            raise ValueError("say either deadline or deadline_seconds")
        return self


class ForkRun(Body):
    """Goes on from a step of a run."""

    at: Annotated[int, Field(ge=0, le=MOST, description="The step to make instead.")]


class RollBackRun(Body):
    """Undoes what a run did."""

    from_step: Annotated[
        int, Field(ge=0, le=MOST, description="From that step of its model on.")
    ] = 0


class RetryPlan(Body):
    """Does what is left of a plan."""

    plan: Annotated[
        dict[str, Any] | None,
        Field(description="The plan as it was edited; without one it is as it was."),
    ] = None


class Message(Body):
    """Something to tell a run."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "Send it to my office."}]})

    text: str
    key: Annotated[
        Id | None, Field(description="An id of your own: said again under it, it is told once.")
    ] = None


class SentEvent(Body):
    """Something that has happened, for a workflow that waits for it."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "paid", "data": {"cents": 250}}]}
    )

    name: Annotated[Text, Field(min_length=1, max_length=200)]
    data: Any = None
    key: Annotated[
        Id | None, Field(description="An id of your own: told again under it, it is told once.")
    ] = None


RunModel = model_of(reports.Run)
RunLineModel = model_of(reports.RunLine)
ReplayModel = model_of(replay.Replay)
DifferenceModel = model_of(replay.Difference)
PlanModel = model_of(PlanReport)
StartedModel = model_of(reports.Started)
WaitModel = model_of(reports.Wait)


class StandsAt(BaseModel):
    """Where the run stands now."""

    run_id: str
    status: str


class RunPage(BaseModel):
    runs: list[RunLineModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None
