"""What requests and responses look like, here and in the OpenAPI document.

Responses are the reports of `celeriac.reports`, exactly as the command line prints them with
--json; their schemas are made from those classes, so that no field is written down twice.
"""

import functools
import operator
import types
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Annotated, Any, ForwardRef, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)

from celeriac import replay, reports
from celeriac.cron import MAX_EXPRESSION_CHARACTERS
from celeriac.limits import Limits
from celeriac.plan.report import PlanReport
from celeriac.schedule import MAX_CATCH_UP, MAX_JITTER_SECONDS, CatchUp, NewSchedule, Overlap
from celeriac.seconds import MAX_SECONDS
from celeriac_storage.erasing import Erased

_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$"
MOST = 2**31 - 1
_LIMITS = Limits()


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("may not hold the character NUL, which PostgreSQL does not store")
    return text


Id = Annotated[str, Field(pattern=_ID_PATTERN)]
CallIdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}$", examples=["0.0"])]
Text = Annotated[str, AfterValidator(_without_nul)]


class Body(BaseModel):
    """What a request may hold; a field that is not known is refused, since it may be mistyped."""

    model_config = ConfigDict(extra="forbid", str_max_length=1_048_576)

    idempotency_key: Annotated[
        str | None,
        Field(description="The same as the header Idempotency-Key, which is preferred."),
    ] = None


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


class AddSchedule(Body):
    """Starts runs at the times of a cron expression."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "schedule_id": "nightly",
                    "agent": "reporter",
                    "input": "yesterday",
                    "cron": "30 2 * * *",
                    "time_zone": "Europe/Berlin",
                }
            ]
        }
    )

    schedule_id: Annotated[Id, Field(description="A name of your choice.")]
    agent: Annotated[Text, Field(max_length=200)]
    input: Annotated[Any, Field(description="Any JSON that the agent's input schema takes.")]
    cron: Annotated[Text, Field(max_length=MAX_EXPRESSION_CHARACTERS)]
    time_zone: Annotated[Text, Field(max_length=100)] = "UTC"
    overlap: Overlap = "skip"
    catch_up: CatchUp = "last"
    catch_up_limit: Annotated[int, Field(ge=1, le=MAX_CATCH_UP)] = 10
    jitter_seconds: Annotated[float, Field(ge=0, le=MAX_JITTER_SECONDS, allow_inf_nan=False)] = 0.0
    user_id: Annotated[Id | None, Field(description="Whose runs they are; yours by default.")] = (
        None
    )

    def to_schedule(self) -> NewSchedule:
        return NewSchedule(**self.model_dump(exclude={"schedule_id", "user_id", "idempotency_key"}))


class Nothing(Body):
    """Nothing but, if you like, an idempotency key."""


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


class SetPrincipal(Body):
    """What a person may decide."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"roles": ["cashier"], "permissions": {"refund": [["amount", "<=", "500"]]}}
            ]
        }
    )

    roles: Annotated[list[Annotated[Text, Field(max_length=200)]], Field(max_length=100)] = []
    permissions: Annotated[
        dict[Text, Any] | None,
        Field(
            description="By tool, or * for all others, conditions on the arguments; a tool that is "
            "not there may not be decided. Without it there are no limits."
        ),
    ] = None
    disabled: Annotated[bool, Field(description="May decide nothing.")] = False


class CreateToken(Body):
    """Makes a token."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"user_id": "alice", "name": "laptop", "expires_days": 90}]}
    )

    user_id: Annotated[Id, Field(description="Who uses the API with it.")]
    name: Annotated[Text, Field(max_length=200, description="What it is for.")] = ""
    roles: Annotated[
        list[Literal["user", "operator", "admin"]], Field(max_length=3, description="user if none.")
    ] = []
    expires_days: Annotated[
        float | None, Field(gt=0, le=36_500, description="Else it is good until it is revoked.")
    ] = None


class EraseUser(Body):
    """Forgets a user."""

    cancel: Annotated[
        bool, Field(description="Cancel runs that go on first, instead of refusing.")
    ] = False


class CallResult(BaseModel):
    """What one call came to: its result, or why it failed."""

    model_config = ConfigDict(extra="forbid")

    call_id: CallIdText
    result: Annotated[Any, Field(description="What the call returned, any JSON.")] = None
    error: Annotated[Text | None, Field(description="Why it failed; the model is told it.")] = None
    receipt: Annotated[
        Any,
        Field(description="Of a call that changes files: the receipt that says either of both."),
    ] = None

    @model_validator(mode="after")
    def _is_one_of_all(self) -> "CallResult":
        if len({"result", "error", "receipt"} & self.model_fields_set) != 1:
            raise ValueError("say either the result or the error, or give a receipt")
        if "error" in self.model_fields_set and self.error is None:
            raise ValueError("the error may not be null")
        return self


class Results(Body):
    """What calls came to that another process has executed."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"results": [{"call_id": "0.0", "result": {"in_stock": 3}}]}]
        }
    )

    results: Annotated[list[CallResult], Field(min_length=1, max_length=1000)]

    @model_validator(mode="after")
    def _has_each_call_once(self) -> "Results":
        if len({each.call_id for each in self.results}) != len(self.results):
            raise ValueError("a call stands twice")
        return self


class ResolveCall(Body):
    """What came of a call whose outcome is unknown."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"call_id": "0.0", "committed": {"refund_id": "R-1"}},
                {"call_id": "0.0", "not_done": True},
            ]
        }
    )

    call_id: CallIdText
    committed: Annotated[Any, Field(description="It took effect: the result to tell.")] = None
    not_done: Annotated[
        Literal[True] | None,
        Field(description="It changed nothing and never will: it is made again."),
    ] = None

    @property
    def has_committed(self) -> bool:
        return "committed" in self.model_fields_set

    @model_validator(mode="after")
    def _is_one_of_both(self) -> "ResolveCall":
        if self.has_committed == (self.not_done is not None):
            raise ValueError("say either committed, with the result, or not_done: true")
        return self


Amount = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{1,18}(\.[0-9]{1,10})?$",
        examples=["12.50"],
        description="As a string, so that it is exact.",
    ),
]


class SetBudget(Body):
    """The limits of a budget; one that is not said does not limit anything."""

    hard_limit: Annotated[Amount | None, Field(description="No step begins that may pass it.")] = (
        None
    )
    soft_limit: Annotated[
        Amount | None, Field(description="The run's history says when it is reached.")
    ] = None
    on_exceeded: Annotated[
        Literal["pause", "fail"],
        Field(description="Whether a run then waits for a top-up, or ends."),
    ] = "pause"


class TopUp(Body):
    """What the hard limit grows by."""

    amount: Amount


class DecideApproval(Body):
    """What you say about a proposal."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"decision": "approve", "arguments_hash": "…64 hex digits…"},
                {
                    "decision": "edit",
                    "arguments_hash": "…",
                    "arguments": {"order_id": "O-1", "amount": "40.00"},
                    "reason": "half of it was used",
                },
                {"decision": "reject", "arguments_hash": "…", "reason": "the order is too old"},
            ]
        }
    )

    decision: Literal["approve", "edit", "reject"]
    arguments_hash: Annotated[
        Text, Field(max_length=200, description="As it was shown: what you decide is that.")
    ]
    arguments: Annotated[
        dict[str, Any] | None, Field(description="With edit: all arguments, as they should be.")
    ] = None
    reason: Text = ""
    answers: Annotated[
        dict[Text, Text], Field(description="To the questions of the checklist.")
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_arguments_to_edit(self) -> "DecideApproval":
        if (self.decision == "edit") != (self.arguments is not None):
            raise ValueError("arguments stand with the decision edit, and with no other")
        return self


class PutMemory(Body):
    """What to remember, for the policy to decide about."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"value": "Prefers short answers in Chinese"},
                {"value": {"seat": "aisle"}, "replaces_version": 1, "expires_days": 365},
            ]
        }
    )

    value: Annotated[Any, Field(description="Any JSON but null; a text is best.")]
    kind: Literal["semantic", "episodic", "procedural"] = "semantic"
    replaces_version: Annotated[
        int | None, Field(ge=1, le=MOST, description="To change what is there: its version now.")
    ] = None
    expires_days: Annotated[float | None, Field(gt=0, le=36_500, allow_inf_nan=False)] = None
    user_id: Annotated[
        Id | None, Field(description="Of whom; of you by default. Others' take an operator.")
    ] = None


# Responses ----------------------------------------------------------------------------------------


@functools.cache
def model_of(report: type) -> type[BaseModel]:
    """A report's class as a model, for its schema. Any JSON is `Any`: pydantic knows no type that
    is defined by itself."""
    assert is_dataclass(report)
    members: dict[str, Any] = {field.name: (_shown(field.type), ...) for field in fields(report)}
    model: type[BaseModel] = create_model(report.__name__, __doc__=report.__doc__, **members)
    return model


def _shown(declared: Any) -> Any:
    if isinstance(declared, str | ForwardRef):
        return Any
    if isinstance(declared, type) and is_dataclass(declared):
        return model_of(declared)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        return functools.reduce(operator.or_, map(_shown, arguments))
    if origin in (Sequence, list):
        return list[_shown(arguments[0])]  # type: ignore[misc]  # made while it runs
    if origin in (Mapping, dict):
        return dict[str, _shown(arguments[1])]  # type: ignore[misc]  # made while it runs
    if declared is Decimal:
        return str
    return getattr(declared, "__supertype__", declared)


RunModel = model_of(reports.Run)
RunLineModel = model_of(reports.RunLine)
ReplayModel = model_of(replay.Replay)
DifferenceModel = model_of(replay.Difference)
PlanModel = model_of(PlanReport)
StartedModel = model_of(reports.Started)
RequestedCallModel = model_of(reports.RequestedCall)
ThreadModel = model_of(reports.Thread)
ThreadLineModel = model_of(reports.ThreadLine)
ApprovalModel = model_of(reports.Approval)
DecidedModel = model_of(reports.Decided)
ScheduleModel = model_of(reports.Schedule)
TimerModel = model_of(reports.Timer)
ScheduleFireModel = model_of(reports.ScheduleFire)
MemoryModel = model_of(reports.Memory)
MemoryDecisionModel = model_of(reports.MemoryDecision)
MemoryExportModel = model_of(reports.MemoryExport)
RememberedModel = model_of(reports.Remembered)
WaitModel = model_of(reports.Wait)
PrincipalModel = model_of(reports.Principal)
TokenModel = model_of(reports.Token)
NewTokenModel = model_of(reports.NewToken)


ErasedModel = model_of(Erased)
BudgetModel = model_of(reports.Budget)


class StandsAt(BaseModel):
    """Where the run stands now."""

    run_id: str
    status: str


class RunPage(BaseModel):
    runs: list[RunLineModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None


class ThreadPage(BaseModel):
    threads: list[ThreadLineModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None


class ApprovalPage(BaseModel):
    approvals: list[ApprovalModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None


class Schedules(BaseModel):
    schedules: list[ScheduleModel]  # type: ignore[valid-type]  # made while it runs


class Timers(BaseModel):
    timers: list[TimerModel]  # type: ignore[valid-type]  # made while it runs


class MemoryPage(BaseModel):
    memories: list[MemoryModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None


class MemoryDecisionPage(BaseModel):
    decisions: list[MemoryDecisionModel]  # type: ignore[valid-type]  # made while it runs
    next_cursor: str | None


class Forgotten(BaseModel):
    """It was there, and is not there any more."""

    forgotten: Literal[True]


class Budgets(BaseModel):
    budgets: list[BudgetModel]  # type: ignore[valid-type]  # made while it runs


class Calls(BaseModel):
    calls: list[RequestedCallModel]  # type: ignore[valid-type]  # made while it runs


class Principals(BaseModel):
    principals: list[PrincipalModel]  # type: ignore[valid-type]  # made while it runs


class Tokens(BaseModel):
    tokens: list[TokenModel]  # type: ignore[valid-type]  # made while it runs


class FieldProblem(BaseModel):
    pointer: str
    detail: str


class ProblemModel(BaseModel):
    """What went wrong (RFC 9457). Programs go by `type`."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: Annotated[
        list[FieldProblem], Field(default_factory=list, description="Of an invalid request.")
    ]


class Health(BaseModel):
    status: Literal["ok"]


class Readiness(BaseModel):
    status: Literal["ready", "not ready"]
    database: str
    broker: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": meaning,
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
    for status, meaning in {
        400: "The request cannot be read, or lacks an idempotency key that it needs",
        401: "No good token",
        403: "Not with these roles, or not by this person",
        404: "There is no such thing, or it is not yours to see",
        409: "The state of the run does not allow this",
        410: "This was done, and its answer is not kept any more",
        413: "The body is too large",
        415: "The body is not JSON",
        422: "This cannot be used",
        429: "Too many requests",
        500: "Something went wrong in the service",
        503: "A server is away; ask again",
    }.items()
}


NOT_SET_UP: dict[int | str, dict[str, Any]] = {
    501: {**PROBLEMS[500], "description": "No login of this service may do that"}
}


def answers(status: int, model: type[BaseModel], meaning: str) -> dict[int | str, dict[str, Any]]:
    """An endpoint's responses as the OpenAPI document shows them."""
    return {status: {"model": model, "description": meaning}, **PROBLEMS}
