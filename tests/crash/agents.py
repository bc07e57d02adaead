"""The agents whose workers are killed, and the tables their doings are counted in.

Their queue is the one the worker serves: on RabbitMQ each test has its own.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx2
import psycopg
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, UserPromptPart
from sqlalchemy import text

from celeriac import Agent, ToolContext, tool
from celeriac.ids import DEFAULT_QUEUE
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say, turn_number
from celeriac_storage.database import libpq_url
from examples import order_desk as desk

QUEUE = os.environ.get("CELERIAC_QUEUES", DEFAULT_QUEUE)

CREATE_TABLES = """
CREATE SCHEMA crash;
CREATE TABLE crash.tally (run_id text NOT NULL, call_id text NOT NULL, label text NOT NULL);
CREATE TABLE crash.calls (
    run_id text NOT NULL,
    call_id text NOT NULL,
    tool text NOT NULL,
    pid integer NOT NULL,
    neighbours integer NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE crash.open_gates (gate text PRIMARY KEY);
"""
"""`tally` is written in the step's transaction; `calls` at the begin of each call, whatever becomes
of it; who waits at a gate goes on when its name is in `open_gates`."""

_lock = threading.Lock()
_inside = 0  # calls that this process is making just now


def _connect() -> psycopg.Connection:
    return psycopg.connect(libpq_url(os.environ["CELERIAC_DATABASE_URL"]), autocommit=True)


@contextmanager
def _noted(ctx: ToolContext) -> Iterator[None]:
    """Note that the call begins, and how many others this process is making."""
    global _inside
    with _lock:
        neighbours = _inside
        _inside += 1
    try:
        with _connect() as connection:
            connection.execute(
                "INSERT INTO crash.calls (run_id, call_id, tool, pid, neighbours)"
                " VALUES (%s, %s, %s, %s, %s)",
                (ctx.run_id, ctx.call_id, ctx.tool, os.getpid(), neighbours),
            )
        yield
    finally:
        with _lock:
            _inside -= 1


def _wait_until_open(gate: str) -> None:
    """However often the server goes away meanwhile."""
    while True:
        try:
            with _connect() as connection:
                while not _is_open(connection, gate):
                    time.sleep(0.02)
            return
        except psycopg.OperationalError:
            time.sleep(0.1)


def _is_open(connection: psycopg.Connection, gate: str) -> bool:
    query = "SELECT FROM crash.open_gates WHERE gate = %s"
    return connection.execute(query, (gate,)).fetchone() is not None


@tool(effect="transactional")
def tally(ctx: ToolContext, label: str) -> str:
    """Write one row in the step's transaction."""
    ctx.connection.execute(
        text("INSERT INTO crash.tally VALUES (:run_id, :call_id, :label)"),
        {"run_id": ctx.run_id, "call_id": ctx.call_id, "label": label},
    )
    return label


@tool(effect="none")
def look(ctx: ToolContext, label: str) -> str:
    """Read nothing, and be counted."""
    with _noted(ctx):
        return label


@tool(effect="none", timeout_seconds=60.0)
def wait_at(ctx: ToolContext, gate: str) -> str:
    """Wait until the test opens the gate."""
    with _noted(ctx):
        _wait_until_open(gate)
    return gate


@tool(effect="none")
def poison(ctx: ToolContext) -> str:
    """Kill the process that calls it, unless the gate `cure` is open."""
    with _noted(ctx), _connect() as connection:
        if not _is_open(connection, "cure"):
            os.kill(os.getpid(), signal.SIGKILL)
    return "cured"


@tool(effect="external")
def notify(ctx: ToolContext, order_id: str) -> str:
    """Tell a customer, with the call's own key."""
    httpx2.post(
        f"{os.environ['ORDER_DESK_NOTIFY_URL']}/notifications",
        json={"order_id": order_id, "sku": "A-7", "quantity": 1},
        headers={"Idempotency-Key": ctx.idempotency_key},
        timeout=5.0,
    ).raise_for_status()
    return "sent"


def _prompt(messages: Sequence[ModelMessage]) -> str:
    return next(str(part.content) for part in messages[0].parts if isinstance(part, UserPromptPart))


def _busy_once(messages: Sequence[ModelMessage]) -> Turn:
    """Too many requests at the run's first question; then count and be done."""
    if turn_number(messages) == 0:
        marker = Path(os.environ["CELERIAC_TEST_POINTS_DIR"]) / f"busy-{_prompt(messages)}"
        try:
            marker.open("x").close()
        except FileExistsError:
            return call("tally", label="after the timer")
        return Turn(error=ModelHTTPError(429, "busy"))
    return say("done")


order_desk = Agent(
    "order-desk",
    ScriptedModel(desk.next_turn, "order-desk-script"),
    tools=[desk.check_inventory, desk.deduct_inventory, desk.notify_shipped],
    input=desk.Order,
    queue=QUEUE,
)

counter = Agent(
    "counter",
    ScriptedModel(
        [call("tally", label="one"), call("look", label="two"), call("tally", label="three"),
         say("done")]
    ),
    tools=[tally, look],
    queue=QUEUE,
)  # fmt: skip

many_calls = Agent(
    "many-calls",
    ScriptedModel(
        [Turn(calls=tuple(ToolCall("tally", {"label": str(n)}) for n in range(3))), say("done")]
    ),
    tools=[tally],
    queue=QUEUE,
)
"""Three effectful calls in one response: steps 1, 2 and 3."""

waiter = Agent(
    "waiter",
    ScriptedModel([call("tally", label="before"), call("wait_at", gate="gate"),
                   call("tally", label="after"), say("done")]),
    tools=[tally, wait_at],
    queue=QUEUE,
)  # fmt: skip
"""Waits in step 3 for the gate `gate`."""

retried = Agent("retried", ScriptedModel(_busy_once), tools=[tally], queue=QUEUE)
"""Is paused for a timer first: its model answers 429 once. Each run needs an input of its own."""

notifier = Agent(
    "notifier",
    ScriptedModel(
        lambda messages: (
            say("done") if turn_number(messages) else call("notify", order_id=_prompt(messages))
        )
    ),
    tools=[notify],
    queue=QUEUE,
)
"""Makes an external call in step 1, and nothing but the call's key keeps it from happening
twice.
"""

poisoned = Agent(
    "poisoned", ScriptedModel([call("poison"), say("done")]), tools=[poison], queue=QUEUE
)
"""Kills its worker in step 1."""
