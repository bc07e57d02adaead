"""A refund desk whose calls people decide about, with a ledger that counts what was executed.

The steps are taken in the test's own process, so that a test says when a worker is there; the
decisions go through the client, as from any other process.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field
from sqlalchemy import Row, text

from celeriac import Agent, Approval, Client, ToolContext, tool
from celeriac.codec import JsonValue
from celeriac.ids import CallId, RunId
from celeriac.reports import Approval as Proposal
from celeriac.scripted import ScriptedModel, ToolCall, Turn, say
from celeriac.states import RunStatus
from celeriac.tools import Tool
from celeriac_storage import agents
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from tests.worker_in_process import FIRST_CALL, Worker

REFUND = {"order_id": "O-1", "amount": "80.00"}
Effect = Literal["none", "transactional", "external"]


@dataclass
class Ledger:
    """What was executed, in order: tool, arguments and key."""

    entries: list[tuple[str, dict[str, Any], str]] = field(default_factory=list)

    def amounts(self, tool_name: str = "refund") -> list[str]:
        return [str(done["amount"]) for name, done, _ in self.entries if name == tool_name]

    def count(self, tool_name: str) -> int:
        return len([name for name, _, _ in self.entries if name == tool_name])


def refund_tool(
    ledger: Ledger, approval: Approval | None, effect: Effect = "external", **more: Any
) -> Tool[..., Any]:
    """Pays back, which the ledger counts."""

    def refund(
        ctx: ToolContext,
        order_id: str,
        amount: Annotated[Decimal, Field(gt=0, max_digits=10, decimal_places=2)],
        note: str = "",
    ) -> str:
        """Pay money back to a customer."""
        done = {"order_id": order_id, "amount": amount, "note": note}
        ledger.entries.append(("refund", done, ctx.idempotency_key))
        if effect == "transactional":
            ctx.connection.execute(text("SELECT 1"))
        return "REFUNDED"

    return tool(effect=effect, approval=approval, **more)(refund)


def audit_tool(ledger: Ledger, effect: Effect = "external") -> Tool[..., Any]:
    """Needs nobody."""

    @tool(effect=effect)
    def look_up(ctx: ToolContext, order_id: str) -> str:
        """Note that somebody looked at an order."""
        ledger.entries.append(("look_up", {"order_id": order_id}, ctx.idempotency_key))
        return "SEEN"

    return look_up


class Desk:
    """The agent `desk` with these tools; its model makes `calls`, and is done after that."""

    def __init__(
        self,
        database: Database,
        broker_url: str,
        ledger: Ledger,
        tools: Sequence[Tool[..., Any]],
        calls: Sequence[tuple[str, Mapping[str, object]]],
    ) -> None:
        self.ledger = ledger
        self.database = database
        self.asked: list[int] = []  # how many messages the model was shown, at each question
        made = Turn(calls=tuple(ToolCall(name, arguments) for name, arguments in calls))

        def script(messages: Sequence[Any]) -> Turn:
            self.asked.append(len(messages))
            self.shown = str(messages[-1])
            return made if len(self.asked) == 1 else say("done")

        self.agent = Agent("desk", ScriptedModel(script), tools=tools)
        self.broker_url = broker_url
        self.client = Client(database.url)
        with database.begin() as connection:
            agents.register_agent(
                connection, "desk", self.agent.agent_hash, self.agent.definition()
            )
        self.worker = self.new_worker()

    def new_worker(self) -> Worker:
        """Another worker, which has seen nothing."""
        self.worker = Worker(self.database.url, self.broker_url, [self.agent])
        self.worker.process.start()
        return self.worker

    def propose(self) -> tuple[RunId, list[Proposal]]:
        """A run whose model has made its calls, taken as far as it goes; its pending proposals."""
        run_id = self.worker.start("desk")
        self.go_on(run_id)
        return run_id, self.client.approvals(run_id=run_id, by="viewer")

    def go_on(self, run_id: RunId) -> Row[Any]:
        """Take steps for as long as the run is queued; its row then."""
        for _ in range(20):
            if self.row(run_id).status != RunStatus.QUEUED:
                return self.row(run_id)
            self.worker.step(run_id)
        raise AssertionError(f"the run is still queued: {self.row(run_id)}")

    def events(self, run_id: RunId) -> list[str]:
        return [event.type for event in self.client.events(run_id)]

    def row(self, run_id: RunId) -> Row[Any]:
        (row,) = self.rows("SELECT * FROM celeriac.runs WHERE run_id = %s", run_id)
        return row

    def effect(self, run_id: RunId, call: CallId = FIRST_CALL) -> Row[Any]:
        (row,) = self.rows(
            "SELECT * FROM celeriac.effects WHERE run_id = %s AND call_id = %s", run_id, call
        )
        return row

    def rows(self, sql: str, *values: object) -> list[Row[Any]]:
        with self.database.connect() as connection:
            return list(connection.exec_driver_sql(sql, values))

    def trail(self, approval_id: str) -> list[tuple[str, str, str]]:
        """Actor, action and outcome of each row about the proposal."""
        rows = self.rows(
            "SELECT actor, action, outcome FROM celeriac.audit WHERE object = %s ORDER BY audit_id",
            approval_id,
        )
        return [tuple(row) for row in rows]

    def damage(self, sql: str) -> None:
        """Change rows past every trigger."""
        with self.database.begin() as connection:
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
            connection.exec_driver_sql(sql)

    def let_time_pass(self, hours: float) -> None:
        """The database's clock, seen from the proposals, is set forward."""
        self.damage(
            "UPDATE celeriac.approvals SET "
            + ", ".join(
                f"{name} = {name} - interval '{hours} hours'"
                for name in ("created_at", "surfaced_at", "expires_at", "decided_at")
            )
        )

    def violations(self) -> list[str]:
        return [found.detail for found in audit(self.database)]

    def close(self) -> None:
        self.client.close()
        self.worker.process.stop()


def values(**changed: JsonValue) -> dict[str, JsonValue]:
    """The refund's arguments, with changes; None leaves one out."""
    return {name: each for name, each in {**REFUND, **changed}.items() if each is not None}
