"""A box office with a Celery application of its own, and agents that have its tasks as tools."""

import os
import time

import psycopg
from celery import Celery, Task

from celeriac import Agent, tool_from_task
from celeriac.scripted import ScriptedModel, call, say
from celeriac.tools import Tool

DATABASE_URL = os.environ.get("CELERIAC_DATABASE_URL", "")
BROKER_URL = os.environ.get("CELERIAC_BROKER_URL", "redis://127.0.0.1:1/0")
TABLES = """
    CREATE SCHEMA box;
    CREATE TABLE box.ledger (task_id text, line text, pid integer);
    CREATE TABLE box.gates (name text);
"""

app = Celery(
    "box_office",
    broker=BROKER_URL,
    backend=os.environ.get("BOX_RESULTS", BROKER_URL),
    set_as_current=False,
)
app.conf.update(
    task_default_queue=f"box-{os.environ.get('CELERIAC_QUEUES', 'celeriac')}",
    worker_disable_prefetch=True,  # what a worker holds it begins, however late or revoked
)


class SoldOut(Exception):
    """There are no such seats, and none was booked."""


def note(task_id: str, line: str) -> None:
    with psycopg.connect(DATABASE_URL, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO box.ledger VALUES (%s, %s, %s)", (task_id, line, os.getpid())
        )


def wait_for_gate(name: str) -> None:
    with psycopg.connect(DATABASE_URL, autocommit=True) as connection:
        while not connection.execute("SELECT 1 FROM box.gates WHERE name = %s", (name,)).fetchone():
            time.sleep(0.02)


@app.task(bind=True, shared=False)
def book(self: "Task[..., object]", show: str, seats: int = 2) -> dict[str, object]:
    """Book seats for a show.

    Args:
        show: Its title.
        seats: How many.
    """
    assert self.request.id is not None
    note(self.request.id, f"{show} {seats}")
    if show == "sold out":
        raise SoldOut(f"{seats} seats of {show}")
    if show == "broken":
        raise ValueError("the printer jammed")
    return {"show": show, "seats": seats}


@app.task(bind=True, shared=False)
def print_ticket(self: "Task[..., object]", gate: str) -> str:
    """Print the ticket, which takes until somebody has put paper in."""
    assert self.request.id is not None
    note(self.request.id, "begun")
    wait_for_gate(gate)
    note(self.request.id, "done")
    return f"printed by {gate}"


def _agent(name: str, tool: Tool[..., object], **arguments: object) -> Agent:
    return Agent(
        name, ScriptedModel([call(tool.name, **arguments), say("Enjoy the show.")]), tools=[tool]
    )


_book = tool_from_task(book, refusals=(SoldOut,), timeout_seconds=20)
booker = _agent("booker", _book, show="Hamlet")
refused = _agent("refused", _book, show="sold out")
broken = _agent("broken", tool_from_task(book, on_unknown="ask", timeout_seconds=20), show="broken")
peeking = _agent("peeking", tool_from_task(book, effect="none", timeout_seconds=20), show="broken")
printer = _agent("printer", tool_from_task(print_ticket, timeout_seconds=30), gate="paper")
careful = _agent(
    "careful", tool_from_task(print_ticket, on_unknown="ask", timeout_seconds=3), gate="paper"
)
hasty = _agent("hasty", tool_from_task(print_ticket, timeout_seconds=2), gate="paper")
