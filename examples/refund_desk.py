"""The refund desk: find the order, check the policy, pay back after a person agreed, say so. Once.

    python examples/payment_service.py --ledger payments.sqlite3
    python examples/refund_desk.py prepare
    celeriac run refund-desk --input '{"order_id": "ORDER-42", "amount": "18.50"}' --wait

Kill whatever you like while it runs: the money goes back once, or a person is told that this cannot
be known. A script plays the model, offline; REFUND_DESK_MODEL=openai:gpt-5 puts a real one in its
place.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Annotated, Any

import httpx2
from pydantic import BaseModel, Field
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from sqlalchemy import create_engine, make_url, text

from celeriac import Agent, Approval, Compensate, Rule, ToolContext, ToolError, When, tool
from celeriac.messages import opens_run
from celeriac.recovery import Done, NotDone, Retry, Unclear
from celeriac.scripted import ScriptedModel, ToolCall, Turn, call, say

PAYMENT_URL = "http://127.0.0.1:8026"  # unless REFUND_DESK_PAYMENT_URL is set
PAYMENT_TIMEOUT_SECONDS = 5.0  # to connect, and again to answer; far below the tools' own timeouts
REFUND_TIMEOUT_SECONDS = 5.0  # the same for a refund
NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.UnsupportedProtocol)
VISIBILITY_SECONDS = float(os.environ.get("REFUND_DESK_VISIBILITY_SECONDS", "2"))
"""How long the payment service may take from a request until its look-up shows the refund: what its
owner promises, not what was measured on a good day."""

Code = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
# A decimal that is written as text: 18.50. No float, no sign, no NaN, no part of a cent.
Amount = Annotated[Decimal, Field(gt=0, max_digits=9, decimal_places=2)]


class Request(BaseModel):
    """A run's input. What does not fit is refused before there is a run."""

    order_id: Code
    amount: Amount


class PaymentServiceAway(ToolError):
    """Nobody was there to take the request, so it was certainly not sent."""


def find_refund(ctx: ToolContext) -> Done | NotDone | Unclear:
    """What the payment service has done for this call: by its own key, never "one like it"."""
    found = _ask("GET", "/refunds", params={"key": ctx.idempotency_key})["refunds"]
    match found:
        case []:
            return NotDone()
        case [refund]:
            return Done(_refunded(refund))
    return Unclear(f"there are {len(found)} refunds under the key {ctx.idempotency_key}")


def cancel_refund(ctx: ToolContext) -> dict[str, Any]:
    """Make up for a refund: the payment service cancels the one made under the call's own key."""
    return _ask(
        "POST",
        "/cancellations",
        json={"refund_key": ctx.undoes_key},
        headers={"Idempotency-Key": ctx.idempotency_key},
    )


def find_cancellation(ctx: ToolContext) -> Done | NotDone:
    """Whether the payment service has cancelled it, by the cancellation's own key."""
    found = _ask("GET", "/cancellations", params={"key": ctx.idempotency_key})["cancellations"]
    return Done(found[0]) if found else NotDone()


@tool(effect="none", retry=Retry(on=(PaymentServiceAway,)))
def find_order(order_id: Code) -> dict[str, Any]:
    """Tell what was paid for an order, and how much of it was refunded."""
    payment = _ask("GET", "/payments", params={"order_id": order_id})
    paid, refunded = _euros(payment["paid"]), _euros(payment["refunded"])
    return {"order_id": order_id, "paid": paid, "refunded": refunded}


@tool(effect="none", retry=Retry(on=(PaymentServiceAway,)))
def check_policy(order_id: Code, amount: Amount) -> dict[str, Any]:
    """Tell whether a refund is allowed: never more than was paid and not yet refunded."""
    payment = _ask("GET", "/payments", params={"order_id": order_id})
    left = payment["paid"] - payment["refunded"]
    return {"is_allowed": _cents(amount) <= left, "left": _euros(left)}


@tool(
    effect="external",
    timeout_seconds=20.0,
    verify=find_refund,
    visibility_seconds=VISIBILITY_SECONDS,
    on_unknown="verify",
    retry=Retry(on=(PaymentServiceAway,)),
    rollback=Compensate(
        cancel_refund,
        verify=find_cancellation,
        visibility_seconds=VISIBILITY_SECONDS,
        on_unknown="verify",
        retry=Retry(on=(PaymentServiceAway,)),
    ),
    approval=Approval(
        roles=["refunds"],
        rules=[Rule(When("amount", ">", "1000"), quorum=2)],
        immutable=["order_id"],
        intent="Refund {amount} EUR of order {order_id}",
        blast_radius="{amount} EUR leave our account for the customer of order {order_id}",
        permissions_touched=["payments.refund"],
        data_lineage=["the order as the payment service knows it"],
    ),
)
def issue_refund(ctx: ToolContext, order_id: Code, amount: Amount) -> dict[str, Any]:
    """Pay back an amount in euros, such as "18.50", to the customer of an order."""
    refund = _ask(
        "POST",
        "/refunds",
        json={"order_id": order_id, "cents": _cents(amount)},
        headers={"Idempotency-Key": ctx.idempotency_key},
        timeout=REFUND_TIMEOUT_SECONDS,
    )
    return _refunded({**refund, "order_id": order_id, "cents": _cents(amount)})


def correct_letter(ctx: ToolContext, order_id: Code, letter: str) -> str:
    """What was posted stays posted; a second letter says that it does not hold."""
    return _post(ctx, order_id, f'Our letter "{letter}" does not hold. Please excuse us.')


@tool(effect="transactional", rollback=Compensate(correct_letter))
def tell_customer(ctx: ToolContext, order_id: Code, letter: str) -> str:
    """Put a letter to the customer of an order into the outgoing mail."""
    return _post(ctx, order_id, letter)


def _post(ctx: ToolContext, order_id: str, letter: str) -> str:
    ctx.connection.execute(
        text("INSERT INTO refund_desk.letters (order_id, body) VALUES (:order_id, :body)"),
        {"order_id": order_id, "body": letter},
    )
    return "POSTED"


def _ask(method: str, path: str, **request: Any) -> dict[str, Any]:
    """One request to the payment service.

    What is no `ToolError` may have come after the money was moved: it makes the outcome of
    `issue_refund` unknown, and `find_refund` is asked before anything is sent again.
    """
    url = os.environ.get("REFUND_DESK_PAYMENT_URL", PAYMENT_URL)
    try:
        answer = _client().request(
            method, url + path, **{"timeout": PAYMENT_TIMEOUT_SECONDS} | request
        )
    except NEVER_SENT as error:
        raise PaymentServiceAway(f"no payment service at {url}: {error}") from error
    if answer.is_client_error:
        raise ToolError(f"refused ({answer.status_code}): {answer.json()['error']}")
    document: dict[str, Any] = answer.raise_for_status().json()
    return document


@cache
def _client() -> httpx2.Client:
    # One for all requests: to make one takes 36 ms, nearly all of it for TLS. But no connection is
    # kept: the other side may close it just when it is used again, and nobody would know whether
    # that request had been read.
    return httpx2.Client(limits=httpx2.Limits(max_keepalive_connections=0))


def _refunded(refund: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "status": "REFUNDED",
        "refund_id": refund["refund_id"],
        "order_id": refund["order_id"],
        "amount": _euros(refund["cents"]),
    }


def _cents(amount: Decimal) -> int:
    return int(amount * 100)  # exact: `Amount` has two decimal places at most


def _euros(cents: int) -> str:
    return f"{Decimal(cents) / 100:.2f}"


def next_turn(messages: Sequence[ModelMessage]) -> Turn:
    """What a careful model does next, judging by what the tools have answered in this run."""
    start = max(index for index, message in enumerate(messages) if opens_run(message))
    parts = [part for message in messages[start:] for part in message.parts]
    prompt = next(part.content for part in parts if isinstance(part, UserPromptPart))
    request = Request.model_validate_json(str(prompt))
    wanted = request.model_dump(mode="json")
    answers = [part for part in parts if isinstance(part, ToolReturnPart)]
    if not answers:
        return Turn(
            calls=(
                ToolCall("find_order", {"order_id": request.order_id}),
                ToolCall("check_policy", wanted),
            )
        )
    told: dict[str, Any] = {answer.tool_name: answer.content for answer in answers}
    match answers[-1].tool_name, answers[-1].outcome, answers[-1].content:
        case "check_policy", "success", {"is_allowed": True}:
            return call("issue_refund", **wanted)
        case "check_policy", "success", {"left": left}:
            return say(f"Order {request.order_id}: nothing was refunded, only {left} EUR are left.")
        case "issue_refund", "success", {"amount": amount}:
            # Not what was asked for: a person may have agreed to less.
            letter = f"We have refunded {amount} EUR of your order {request.order_id}."
            return call("tell_customer", order_id=request.order_id, letter=letter)
        case "tell_customer", "success", _:
            refund = told["issue_refund"]
            named = f" as {refund['refund_id']}" if refund["refund_id"] else ""
            return say(f"Order {request.order_id}: {refund['amount']} EUR were refunded{named}.")
        case "tell_customer", "failed", why:
            return say(f"Order {request.order_id}: refunded, but the customer was not told: {why}")
    return say(f"Order {request.order_id}: nothing was refunded: {answers[-1].content}")


refund_desk = Agent(
    "refund-desk",
    model=os.environ.get("REFUND_DESK_MODEL") or ScriptedModel(next_turn, "refund-desk-script"),
    instructions="""\
You handle one request for a refund, given as JSON. Find the order and check the policy. If the
refund is allowed, issue it; a person decides about it first, and may change the amount. Then tell
the customer what was refunded. If it is not allowed, not agreed to, or fails, refund nothing and do
not try again. End with one sentence that names the order and what was refunded.""",
    tools=[find_order, check_policy, issue_refund, tell_customer],
    input=Request,
    description="Pays a customer back, once, after a person has agreed.",
)

TABLES = """
CREATE SCHEMA IF NOT EXISTS refund_desk;
CREATE TABLE IF NOT EXISTS refund_desk.letters (
    letter_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    order_id text NOT NULL,
    body text NOT NULL
);
"""


def prepare(database_url: str) -> None:
    """Create the table of letters, and let the customer of ORDER-42 pay 100 EUR; what is there
    already stays."""
    engine = create_engine(make_url(database_url).set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        connection.exec_driver_sql(TABLES)
    engine.dispose()
    _ask("POST", "/payments", json={"order_id": "ORDER-42", "cents": 100_00})


if __name__ == "__main__":
    if sys.argv[1:] != ["prepare"] or "CELERIAC_DATABASE_URL" not in os.environ:
        sys.exit("usage: CELERIAC_DATABASE_URL=... python examples/refund_desk.py prepare")
    prepare(os.environ["CELERIAC_DATABASE_URL"])
