"""Agents whose calls are taken back while their workers are killed, and where that is counted."""

from typing import Any

from sqlalchemy import text

from celeriac import Agent, Compensate, InBand, ToolContext, tool
from celeriac.recovery import Done, NotDone
from celeriac.scripted import ScriptedModel, call, say
from celeriac.tools import Tool
from tests.crash.agents import QUEUE, _connect, _noted

CREATE_TABLES = """
CREATE TABLE crash.stock (pieces integer NOT NULL);
INSERT INTO crash.stock VALUES (10);
CREATE TABLE crash.bookings (cents integer NOT NULL);
CREATE TABLE crash.carrier (asked_at timestamptz DEFAULT clock_timestamp(), what text, key text);
"""
"""The carrier ignores keys: it does what it is asked as often as it is asked."""


def put_back(ctx: ToolContext) -> None:
    with _noted(ctx):
        ctx.connection.execute(text("UPDATE crash.stock SET pieces = pieces + 1"))


@tool(effect="transactional", rollback=InBand(put_back))
def take(ctx: ToolContext) -> str:
    """Take one."""
    ctx.connection.execute(text("UPDATE crash.stock SET pieces = pieces - 1"))
    return "TAKEN"


def book_back(ctx: ToolContext, cents: int) -> None:
    with _noted(ctx):
        insert = text("INSERT INTO crash.bookings VALUES (:cents)")
        ctx.connection.execute(insert, {"cents": -cents})


@tool(effect="transactional", rollback=Compensate(book_back))
def book(ctx: ToolContext, cents: int) -> str:
    """Book an amount."""
    ctx.connection.execute(text("INSERT INTO crash.bookings VALUES (:cents)"), {"cents": cents})
    return "BOOKED"


def _tell_carrier(ctx: ToolContext, what: str) -> None:
    with _noted(ctx), _connect() as connection:
        connection.execute(
            "INSERT INTO crash.carrier (what, key) VALUES (%s, %s)", (what, ctx.idempotency_key)
        )


def call_back(ctx: ToolContext) -> None:
    _tell_carrier(ctx, "call back")


def find_call_back(ctx: ToolContext) -> Done | NotDone:
    with _connect() as connection:
        query = "SELECT FROM crash.carrier WHERE what = 'call back' AND key = %s"
        row = connection.execute(query, (ctx.idempotency_key,)).fetchone()
    return NotDone() if row is None else Done()


@tool(rollback=InBand(call_back, verify=find_call_back))
def ship(ctx: ToolContext) -> str:
    """Ship it."""
    _tell_carrier(ctx, "ship")
    return "SHIPPED"


@tool(rollback=Compensate(call_back, verify=find_call_back))
def send(ctx: ToolContext) -> str:
    """Ship it, in a way that only another shipment makes up for."""
    _tell_carrier(ctx, "ship")
    return "SENT"


@tool(rollback="none")
def publish(ctx: ToolContext) -> str:
    """Tell the world."""
    _tell_carrier(ctx, "publish")
    return "PUBLISHED"


@tool(rollback="out_of_band")
def mail(ctx: ToolContext) -> str:
    """Write a letter."""
    _tell_carrier(ctx, "mail")
    return "MAILED"


_TOOLS: list[Tool[..., Any]] = [take, book, ship, send, publish, mail]


def _agent(name: str, *calls: str) -> Agent:
    turns = [call(each, cents=500) if each == "book" else call(each) for each in calls]
    model = ScriptedModel([*turns, say("done")])
    return Agent(name, model, tools=_TOOLS, queue=QUEUE)


taker = _agent("take", "take")
booker = _agent("book", "book")
shipper = _agent("ship", "ship")
sender = _agent("send", "send")
everything = _agent("everything", "take", "book", "ship", "publish", "mail")
