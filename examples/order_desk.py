"""The order desk: check the inventory, deduct from it, tell the customer. Once per order.

    python examples/order_desk.py prepare
    python examples/notification_service.py --ledger notifications.sqlite3
    celeriac run order-desk --input '{"order_id": "O-1001", "sku": "A-7", "quantity": 1}' --wait

Kill whatever you like while it runs: the stock is deducted once, and the customer is told once.
A script plays the model, offline; ORDER_DESK_MODEL=openai:gpt-5 puts a real one in its place.
"""

import json
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import httpx2
from pydantic import BaseModel, Field
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from sqlalchemy import Connection, Engine, Row, create_engine, make_url, text
from sqlalchemy.exc import ProgrammingError, SQLAlchemyError

from celeriac import Agent, InBand, ToolContext, ToolError, tool
from celeriac.messages import opens_run
from celeriac.scripted import ScriptedModel, Turn, call, say

NOTIFY_URL = "http://127.0.0.1:8025"  # unless ORDER_DESK_NOTIFY_URL is set
NOTIFY_TIMEOUT_SECONDS = 5.0  # to connect, and again to answer; far below the tool's own timeout
NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol)
TRIES = 3  # until the script gives up on calls that fail; a failed call has changed nothing

Code = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Quantity = Annotated[int, Field(ge=1, le=10_000)]


class Order(BaseModel):
    """A run's input. What does not fit is refused before there is a run."""

    order_id: Code
    sku: Code
    quantity: Quantity


@tool(effect="none")
def check_inventory(sku: Code) -> dict[str, Any]:
    """Tell how many of an item are in stock; null if there is no such item."""
    try:
        with _business_tables().connect() as connection:
            return {"sku": sku, "in_stock": _in_stock(connection, sku)}
    except ProgrammingError as error:
        hint = "has `python examples/order_desk.py prepare` made the tables?"
        raise ToolError(f"the inventory cannot be read; {hint} ({error.orig})") from error


def put_back(
    ctx: ToolContext, order_id: Code, sku: Code, quantity: Quantity, result: dict[str, Any]
) -> None:
    """Undo `deduct_inventory`: what this call took is in stock again, and no longer in the log."""
    if result["status"] != "DEDUCTED":
        return  # it took nothing: another run had served the order, or the stock was short
    order = {"order_id": order_id, "sku": sku, "quantity": quantity}
    ctx.connection.execute(
        text(
            "DELETE FROM order_desk.side_effect_log WHERE step = 'deduct_inventory'"
            " AND order_id = :order_id AND sku = :sku"
        ),
        order,
    )
    ctx.connection.execute(
        text("UPDATE order_desk.stock SET quantity = quantity + :quantity WHERE sku = :sku"), order
    )


@tool(effect="transactional", rollback=InBand(put_back))
def deduct_inventory(
    ctx: ToolContext, order_id: Code, sku: Code, quantity: Quantity
) -> dict[str, Any]:
    """Take an order's quantity out of the stock, once per order, and return a status.

    What it writes through `ctx.connection` commits together with the step, or not at all.
    """
    order = {"order_id": order_id, "sku": sku, "quantity": quantity}
    with ctx.connection.begin_nested() as savepoint:
        # The log before the stock: two calls for one order meet at its primary key, and the second
        # waits there until the first has committed or failed.
        entry = _log_entry(ctx.connection, ctx, order)
        if entry.quantity != quantity:
            raise ToolError(
                f"order {order_id} took {entry.quantity} of {sku} before, so it cannot take "
                f"{quantity} now; nothing was changed. Another order needs another order_id"
            )
        if entry.result is not None:
            return {**entry.result, "status": "ALREADY_DONE", "replayed": True}
        left = ctx.connection.execute(
            text(
                "UPDATE order_desk.stock SET quantity = quantity - :quantity"
                " WHERE sku = :sku AND quantity >= :quantity RETURNING quantity"
            ),
            order,
        ).scalar()
        if left is not None:
            result = {"status": "DEDUCTED", **order, "in_stock": left}
            ctx.connection.execute(
                text(
                    "UPDATE order_desk.side_effect_log SET result = CAST(:result AS jsonb)"
                    " WHERE step = :step AND order_id = :order_id AND sku = :sku"
                ),
                {**order, "step": ctx.tool, "result": json.dumps(result)},
            )
            return result
        savepoint.rollback()  # not done, so not in the log: after a delivery it can be
    in_stock = _in_stock(ctx.connection, sku)
    status = "UNKNOWN_SKU" if in_stock is None else "OUT_OF_STOCK"
    return {"status": status, **order, "in_stock": in_stock}


@tool(effect="external", timeout_seconds=30.0)
def notify_shipped(
    ctx: ToolContext, order_id: Code, sku: Code, quantity: Quantity
) -> dict[str, Any]:
    """Tell the customer that an order was shipped."""
    order = {"order_id": order_id, "sku": sku, "quantity": quantity}
    url = os.environ.get("ORDER_DESK_NOTIFY_URL", NOTIFY_URL)
    try:
        # The key under which the order's notification was first attempted. A second run for the
        # order has another `ctx.idempotency_key`, which would tell the customer a second time.
        with _business_tables().begin() as connection:
            key = _log_entry(connection, ctx, order).idempotency_key
        answer = httpx2.post(
            f"{url}/notifications",
            json=order,
            headers={"Idempotency-Key": key},
            timeout=NOTIFY_TIMEOUT_SECONDS,
        )
    except (SQLAlchemyError, *NEVER_SENT) as error:
        # Certainly not sent. Any other exception may have come after the customer was told: not
        # caught here, it makes the outcome unknown, and a person is asked before it is sent again.
        raise ToolError(f"the customer was not notified through {url}: {error}") from error
    if answer.is_client_error:
        raise ToolError(f"the notification was refused ({answer.status_code}): {answer.text}")
    sent = answer.raise_for_status().json()
    return {**sent, "status": "ALREADY_SENT" if sent["replayed"] else "SENT"}


def _log_entry(connection: Connection, ctx: ToolContext, order: dict[str, Any]) -> Row[Any]:
    """The one row of this step, order and item, written now unless it is there already."""
    entry = {**order, "step": ctx.tool, "run_id": ctx.run_id, "key": ctx.idempotency_key}
    connection.execute(
        text(
            "INSERT INTO order_desk.side_effect_log"
            " (step, order_id, sku, quantity, run_id, idempotency_key)"
            " VALUES (:step, :order_id, :sku, :quantity, :run_id, :key) ON CONFLICT DO NOTHING"
        ),
        entry,
    )
    return connection.execute(
        text(
            "SELECT quantity, idempotency_key, result FROM order_desk.side_effect_log"
            " WHERE step = :step AND order_id = :order_id AND sku = :sku"
        ),
        entry,
    ).one()


def _in_stock(connection: Connection, sku: str) -> int | None:
    query = text("SELECT quantity FROM order_desk.stock WHERE sku = :sku")
    return connection.execute(query, {"sku": sku}).scalar()


def _business_tables() -> Engine:
    """This process's connections for what is no part of a step's transaction."""
    if database_url := os.environ.get("CELERIAC_DATABASE_URL"):
        return _engine(database_url)
    raise ToolError("CELERIAC_DATABASE_URL is not set, so the order desk's tables cannot be found")


@cache  # made at the first call, which a prefork worker makes after its fork
def _engine(database_url: str) -> Engine:
    url = make_url(database_url).set(drivername="postgresql+psycopg")
    return create_engine(url, pool_size=4, pool_pre_ping=True, connect_args={"connect_timeout": 5})


def next_turn(messages: Sequence[ModelMessage]) -> Turn:
    """What a careful model does next, judging by what the tools have answered in this run."""
    start = max(index for index, message in enumerate(messages) if opens_run(message))
    parts = [part for message in messages[start:] for part in message.parts]
    prompt = next(part.content for part in parts if isinstance(part, UserPromptPart))
    order = Order.model_validate_json(str(prompt))
    answers = [part for part in parts if isinstance(part, ToolReturnPart)]
    if not answers:
        return call("check_inventory", sku=order.sku)
    last = answers[-1]
    may_try_again = sum(answer.outcome == "failed" for answer in answers) < TRIES
    match last.tool_name, last.outcome, last.content:
        case "check_inventory", "failed", _ if may_try_again:
            return call("check_inventory", sku=order.sku)
        case "check_inventory", "success", {"in_stock": int()}:
            # Even if it looks short: the order may have been served before. The deduction knows.
            return call("deduct_inventory", **order.model_dump())
        case "deduct_inventory", "success", {"status": "DEDUCTED" | "ALREADY_DONE"}:
            return call("notify_shipped", **order.model_dump())
        case "notify_shipped", "failed", _ if may_try_again:
            return call("notify_shipped", **order.model_dump())
    return say(f"Order {order.order_id}, {order.quantity} of {order.sku}: {_ending(answers)}")


def _ending(answers: Sequence[ToolReturnPart]) -> str:
    told: dict[str, Any] = {answer.tool_name: answer.content for answer in answers}
    match answers[-1].tool_name, answers[-1].outcome, answers[-1].content:
        case "notify_shipped", outcome, answer:
            deducted = told["deduct_inventory"]
            notified = f"but {answer}" if outcome == "failed" else "and the customer was notified."
            return f"{deducted['status']}, {deducted['in_stock']} left in stock, {notified}"
        case tool_name, "failed", why:
            return f"{tool_name} failed, so nobody was notified: {why}"
        case "deduct_inventory", _, {"status": status, "in_stock": in_stock}:
            return f"{status}, {in_stock or 'none'} in stock, so nobody was notified."
    return "UNKNOWN_SKU, there is no such item, so nobody was notified."


order_desk = Agent(
    "order-desk",
    model=os.environ.get("ORDER_DESK_MODEL") or ScriptedModel(next_turn, "order-desk-script"),
    instructions="""\
You handle one order, given as JSON. Check the inventory, deduct the order's quantity, then notify
the customer. Deduct even if the stock looks short: an order that was served before is recognised.
Notify after DEDUCTED and after ALREADY_DONE, never after OUT_OF_STOCK or UNKNOWN_SKU.
End with one sentence that names the order and its status.""",
    tools=[check_inventory, deduct_inventory, notify_shipped],
    input=Order,
    description="Takes an order out of the stock and tells the customer, once.",
)

TABLES = """
CREATE SCHEMA IF NOT EXISTS order_desk;
CREATE TABLE IF NOT EXISTS order_desk.stock (
    sku text PRIMARY KEY,
    quantity integer NOT NULL CHECK (quantity >= 0)
);
CREATE TABLE IF NOT EXISTS order_desk.side_effect_log (
    step text,
    order_id text,
    sku text,
    quantity integer NOT NULL,
    run_id text NOT NULL,
    idempotency_key text NOT NULL,
    result jsonb,
    at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (step, order_id, sku)
);
INSERT INTO order_desk.stock VALUES ('A-7', 10) ON CONFLICT DO NOTHING;
"""


def prepare(database_url: str) -> None:
    """Create the business tables and put ten A-7 on the shelf; what is there already stays."""
    engine = _engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(TABLES)
    engine.dispose()  # its sessions; the tools open new ones


if __name__ == "__main__":
    if sys.argv[1:] != ["prepare"] or "CELERIAC_DATABASE_URL" not in os.environ:
        sys.exit("usage: CELERIAC_DATABASE_URL=... python examples/order_desk.py prepare")
    prepare(os.environ["CELERIAC_DATABASE_URL"])
