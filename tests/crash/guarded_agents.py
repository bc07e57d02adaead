"""Agents that spend from an account which must hold enough, by a transaction or by a service."""

from sqlalchemy import text

from celeriac import Agent, ToolContext, ToolError, tool
from celeriac.recovery import Done, NotDone, Unclear
from celeriac.scripted import ScriptedModel, call, say
from tests.crash.agents import QUEUE, _connect, _noted

CREATE_ACCOUNT = """
CREATE TABLE crash.account (cents integer NOT NULL);
INSERT INTO crash.account VALUES (1000);
"""
SPENT_CENTS = 400


def is_covered(ctx: ToolContext, cents: int) -> None:
    there = ctx.connection.execute(text("SELECT cents FROM crash.account FOR UPDATE")).scalar_one()
    if there < cents:
        raise ToolError(f"the account holds {there} cents, not {cents}")


@tool(effect="transactional", precondition=is_covered)
def spend(ctx: ToolContext, cents: int) -> str:
    """Spend from the account, whatever it holds."""
    with _noted(ctx):
        update = text("UPDATE crash.account SET cents = cents - :cents")
        ctx.connection.execute(update, {"cents": cents})
    return "SPENT"


def still_covered(ctx: ToolContext, cents: int) -> None:  # noqa: ARG001 - what it takes
    with _connect() as connection:
        row = connection.execute("SELECT cents FROM crash.account").fetchone()
    if row is None or row[0] < cents:
        raise ToolError("the account does not hold that")


def find_transfer(ctx: ToolContext) -> Done | NotDone | Unclear:
    with _connect() as connection:
        query = "SELECT FROM crash.tally WHERE call_id = %s AND run_id = %s"
        found = connection.execute(query, (ctx.call_id, ctx.run_id)).fetchone()
    return NotDone() if found is None else Done("SPENT")


@tool(effect="external", precondition=still_covered, verify=find_transfer)
def transfer(ctx: ToolContext, cents: int) -> str:
    """Spend from the account over another connection, as at a bank."""
    with _noted(ctx), _connect() as connection, connection.transaction():
        connection.execute("UPDATE crash.account SET cents = cents - %s", (cents,))
        connection.execute(
            "INSERT INTO crash.tally VALUES (%s, %s, 'transfer')", (ctx.run_id, ctx.call_id)
        )
    return "SPENT"


def _agent(name: str, tool_name: str) -> Agent:
    model = ScriptedModel([call(tool_name, cents=SPENT_CENTS), say("done")])
    return Agent(name, model, tools=[spend, transfer], queue=QUEUE)


spender = _agent("spender", "spend")
transferrer = _agent("transferrer", "transfer")
"""Step 0 asks for it, step 1 spends."""
