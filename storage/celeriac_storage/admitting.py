"""The border: what a caller asks for becomes a run only if all of it can be used."""

from dataclasses import dataclass

from sqlalchemy import Connection

from celeriac.agent import Agent
from celeriac.codec import JsonValue, dumps
from celeriac.errors import InvalidInput, UnknownAgent
from celeriac.ids import DEFAULT_QUEUE, DEFAULT_TENANT, RunId, TenantId, ThreadId, UserId
from celeriac.limits import Limits
from celeriac.messages import dump_message, user_message
from celeriac.schemas import check_against_schema, strict_json
from celeriac_storage.starting import NewRun, OnBusy, known_agents, latest_definition

MAX_INPUT_BYTES = 1024 * 1024
"""An input is stored, and told to the model. What is larger belongs in a store of its own."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a caller asks for."""

    agent: Agent | str
    input: object
    run_id: RunId
    thread_id: ThreadId
    user_id: UserId
    tenant_id: TenantId = DEFAULT_TENANT
    on_busy: OnBusy = "wait"
    limits: Limits | None = None  # None: the agent's
    is_published: bool = False


def admit(connection: Connection, wish: Wish) -> NewRun:
    """The run that may start. Reads at most the agent's latest definition, and writes nothing.

    An agent given as an object checks the input itself; one given by name is known only by what a
    worker registered, and its input is checked against the schema there. Raises `InvalidInput`, and
    `UnknownAgent` that lists the known ones.
    """
    if isinstance(wish.agent, Agent):
        agent = wish.agent
        name, queue = agent.name, agent.queue
        limits = agent.limits.to_json()
        value = agent.validate_input(wish.input)
    else:
        name = wish.agent
        definition = latest_definition(connection, name)
        if definition is None:
            raise _unknown_agent(connection, name)
        queue = str(definition.get("queue", DEFAULT_QUEUE))
        stored = definition.get("limits")
        limits = stored if isinstance(stored, dict) else {}
        value = _fitting(name, wish.input, definition.get("input_schema"))
    _check_size(name, value)
    return NewRun(
        run_id=wish.run_id,
        agent=name,
        input=value,
        user_message=dump_message(user_message(Agent.prompt(value))),
        word=word(Agent.prompt(value)) if wish.on_busy == "say" else None,
        limits=limits if wish.limits is None else wish.limits.to_json(),
        thread_id=wish.thread_id,
        user_id=wish.user_id,
        tenant_id=wish.tenant_id,
        queue=queue,
        on_busy=wish.on_busy,
        is_published=wish.is_published,
    )


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
    return dump_message(user_message(text, opens_run=False))


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


def _check_size(name: str, value: JsonValue) -> None:
    size = len(dumps(value).encode())
    if size > MAX_INPUT_BYTES:
        raise InvalidInput(
            f"the input of agent {name} has {size} bytes; at most {MAX_INPUT_BYTES} are allowed. "
            "Store what is large elsewhere and give the run its address"
        )
