"""The border: what a caller asks for becomes a run only if all of it can be used."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from celeriac.agent import Agent
from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidInput, UnknownAgent
from celeriac.ids import DEFAULT_QUEUE, DEFAULT_TENANT, RunId, TenantId, ThreadId, UserId
from celeriac.limits import Limits
from celeriac.prompt import prompt_body
from celeriac.schemas import check_against_schema, strict_json
from celeriac.states import RunKind
from celeriac_storage import dispatch
from celeriac_storage.agents import known_agents, latest_definition
from celeriac_storage.new_run import NewPlan, NewRun, OnBusy

LONGEST_SPAN = timedelta(days=10 * 365)
MAX_EVENT_NAME_CHARACTERS = 200
MAX_INPUT_BYTES = 1024 * 1024
"""An input is stored, and told to the model. What is larger belongs in a store of its own."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The run that a caller asks for, not checked yet."""

    agent: Agent | str
    input: object
    run_id: RunId
    thread_id: ThreadId
    user_id: UserId
    tenant_id: TenantId = DEFAULT_TENANT
    on_busy: OnBusy = "wait"
    limits: Limits | None = None  # None: the agent's
    start_at: datetime | None = None  # None: now
    delay: timedelta | None = None  # the same from now on, by the database's clock
    deadline: datetime | timedelta | None = None  # a time, or how long from when it may begin
    start_key: str | None = None
    is_published: bool = False
    made_steps: Collection[str] = ()  # of a plan: not looked at, since they are not made again
    traceparent: str | None = None
    by: UserId | None = None  # who says the input to a run that goes on, if not the user


def admit(connection: Connection, spec: RunSpec) -> NewRun:
    """The run that may start. Reads at most the agent's latest definition, and writes nothing.

    An agent given as an object checks the input itself; one given by name is known only by what a
    worker registered, and its input is checked against the schema there. Raises `InvalidInput`, and
    `UnknownAgent` that lists the known ones.
    """
    if isinstance(spec.agent, Agent):
        agent = spec.agent
        name, queue, kind = agent.name, agent.queue, agent.run_kind
        limits = agent.limits.to_json()
        contract = None if agent.contract is None else agent.contract.to_json()
        value = agent.validate_input(spec.input)
        is_plan = agent.runs_plans
    else:
        name = spec.agent
        definition = latest_definition(connection, name)
        if definition is None:
            raise _unknown_agent(connection, name)
        queue = str(definition.get("queue", DEFAULT_QUEUE))
        kind = RunKind.WORKFLOW if "workflow" in definition else RunKind.AGENT
        stored = definition.get("limits")
        limits = stored if isinstance(stored, dict) else {}
        required = definition.get("contract")
        contract = required if isinstance(required, dict) else None
        value = _fitting(name, spec.input, definition.get("input_schema"))
        is_plan = isinstance(means := definition.get("plan"), dict)
        if isinstance(means, dict):
            value = _checked_plan(value, means, spec.made_steps)
    _check_size(name, value)
    if spec.limits is not None:
        limits = spec.limits.to_json()
    if kind is RunKind.WORKFLOW and spec.on_busy == "say":
        raise InvalidInput(
            f'{name} is a workflow, to which nothing can be said: on_busy="say" does not go with it'
        )
    start_at, deadline_at, deadline_seconds = _times(connection, spec, limits)
    said = None if kind is RunKind.WORKFLOW else prompt_body(Agent.prompt(value))
    return NewRun(
        run_id=spec.run_id,
        agent=name,
        input=value,
        user_message=said,
        kind=kind,
        word=word(Agent.prompt(value)) if spec.on_busy == "say" else None,
        plan=NewPlan(value) if is_plan else None,
        limits=limits,
        thread_id=spec.thread_id,
        user_id=spec.user_id,
        tenant_id=spec.tenant_id,
        queue=queue,
        on_busy=spec.on_busy,
        start_at=start_at,
        deadline_at=deadline_at,
        deadline_seconds=deadline_seconds,
        start_key=spec.start_key,
        is_published=spec.is_published,
        contract=contract,
        traceparent=spec.traceparent,
        by=spec.by,
    )


def check_input(agent: Agent, value: object) -> None:
    """Raise `InvalidInput` if no run of the agent could begin with this."""
    _check_size(agent.name, agent.validate_input(value))


def _times(
    connection: Connection, spec: RunSpec, limits: dict[str, JsonValue]
) -> tuple[datetime | None, datetime | None, float | None]:
    """When the run may begin (None: now), and its deadline as a time and in seconds from then."""
    of_limits = limits.get("deadline_seconds")
    seconds = float(of_limits) if isinstance(of_limits, int | float) else None
    if spec.start_at is None and spec.delay is None and spec.deadline is None:
        return None, None, seconds
    if spec.start_at is not None and spec.delay is not None:
        raise InvalidInput("say either when the run starts or how long from now, not both")
    now = dispatch.now(connection)
    start_at = _aware(spec.start_at, "start_at")
    if spec.delay is not None:
        start_at = now + _positive(spec.delay, "delay")
    if start_at is not None and start_at <= now:
        start_at = None
    if start_at is not None and spec.on_busy != "wait":
        raise InvalidInput(
            f"a run that starts at {start_at:%Y-%m-%d %H:%M:%S} UTC cannot know now whether its "
            f"thread is busy then: on_busy={spec.on_busy!r} does not go with it"
        )
    if isinstance(spec.deadline, timedelta):
        wanted = _positive(spec.deadline, "deadline").total_seconds()
        return start_at, None, wanted if seconds is None else min(wanted, seconds)
    deadline = _aware(spec.deadline, "deadline")
    if deadline is not None and deadline <= (start_at or now):
        raise InvalidInput(
            f"the deadline {deadline.isoformat()} is not after the start, "
            f"{(start_at or now).isoformat()}; nothing could be done"
        )
    return start_at, deadline, seconds


def _aware(moment: datetime | None, name: str) -> datetime | None:
    if moment is not None and moment.tzinfo is None:
        raise InvalidInput(
            f"{name}={moment.isoformat()} does not say in which time zone; give a datetime with "
            "one, such as datetime.now(UTC) + timedelta(hours=1)"
        )
    return moment


def _positive(span: timedelta, name: str) -> timedelta:
    if not timedelta(0) < span <= LONGEST_SPAN:
        raise InvalidInput(f"{name}={span} must be above 0 and at most {LONGEST_SPAN.days} days")
    return span


def event_data(name: str, data: object) -> JsonValue:
    """What a workflow is told along with an event of that name. Raises `InvalidInput`."""
    if not 0 < len(name) <= MAX_EVENT_NAME_CHARACTERS or "\0" in name:
        raise InvalidInput(
            f"{name[:80]!r} cannot be an event's name: 1 to {MAX_EVENT_NAME_CHARACTERS} characters"
        )
    value = strict_json(data)
    size = len(dumps(value).encode())
    if size > MAX_INPUT_BYTES:
        raise InvalidInput(
            f"the data of event {name} have {size} bytes; at most {MAX_INPUT_BYTES} are allowed. "
            "Store what is large elsewhere and tell its address"
        )
    return value


def word(text: str) -> dict[str, JsonValue]:
    """What a user says to a run that goes on, as it is stored. Raises `InvalidInput`."""
    if not text.strip():
        raise InvalidInput("there is nothing to say: the text is empty")
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_INPUT_BYTES:
        raise InvalidInput(
            f"the text has {size} bytes; at most {MAX_INPUT_BYTES} can be said at once. Store what "
            "is large elsewhere and say its address"
        )
    return prompt_body(text, opens_run=False)


def _unknown_agent(connection: Connection, name: str) -> UnknownAgent:
    known = ", ".join(known_agents(connection))
    return UnknownAgent(
        f"no worker has ever had an agent {name!r}; "
        + (f"known are: {known}" if known else "no agent is known at all")
        + ". Start a worker that has it, or name its module with --agents or CELERIAC_AGENTS"
    )


def _fitting(name: str, value: object, schema: JsonValue) -> JsonValue:
    try:
        sent = strict_json(value)
        if isinstance(schema, dict):
            check_against_schema(sent, schema)
    except InvalidInput as error:
        raise InvalidInput(f"the input of agent {name} cannot be used: {error}") from error
    return sent


def _checked_plan(
    value: JsonValue, means: dict[str, JsonValue], made: Collection[str]
) -> JsonValue:
    # Here, because only a plan needs them.
    from celeriac.plan import Plan
    from celeriac.plan.means import Means

    return Means.from_json(means).check(Plan.from_json(value), made).to_json()


def _check_size(name: str, value: JsonValue) -> None:
    size = len(dumps(value).encode())
    if size > MAX_INPUT_BYTES:
        raise InvalidInput(
            f"the input of agent {name} has {size} bytes; at most {MAX_INPUT_BYTES} are allowed. "
            "Store what is large elsewhere and give the run its address"
        )
