"""A shop whose calls can be taken back, each in another way, with ledgers that count from outside.

The steps are taken in the test's own process, so that a test says when a worker is there.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Row, text

from celeriac import Agent, Approval, Client, Compensate, InBand, ToolContext, ToolError, tool
from celeriac.ids import CallId, RunId
from celeriac.recovery import Done, Finding, NotDone, Retry
from celeriac.reports import Run
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac.states import RunStatus
from celeriac.tools import Tool
from celeriac_storage import agents, waking
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from tests.worker_in_process import Worker

TABLES = """
CREATE TABLE stock (sku text PRIMARY KEY, quantity integer NOT NULL);
INSERT INTO stock VALUES ('lamp', 10);
CREATE TABLE bookings (number bigint GENERATED ALWAYS AS IDENTITY, call_key text, cents integer);
"""


class Away(ToolError):
    """Nobody took the request."""


@dataclass
class Carrier:
    """A service elsewhere: what it was asked for, by key, and what is on its way now."""

    requests: list[str] = field(default_factory=list)
    shipped: dict[str, str] = field(default_factory=dict)  # key → item
    cancelled: dict[str, str] = field(default_factory=dict)  # key of the undo → key of the call
    trouble: list[Exception] = field(default_factory=list)  # of the next undos, before they act
    loses_answers: int = 0  # of the next undos, after they act

    def cancel(self, key: str, of: str) -> None:
        self.requests.append(key)
        if self.trouble:
            raise self.trouble.pop(0)
        assert of in self.shipped, "only what was shipped is ever taken back"
        self.cancelled.setdefault(key, of)
        if self.loses_answers:
            self.loses_answers -= 1
            raise ConnectionError("no answer")


@dataclass
class Tools:
    """What the shop's agent can do; `undone` has each undo in the order it was made."""

    carrier: Carrier = field(default_factory=Carrier)
    undone: list[tuple[str, Any]] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)  # of the next undos of `take`
    mails: list[str] = field(default_factory=list)
    verifies: bool = True
    retry: Retry | None = None
    approval: Approval | None = None

    def all(self) -> list[Tool[..., Any]]:
        def put_back(ctx: ToolContext, sku: str, result: int) -> None:
            self.undone.append(("take", result))
            statement = text("UPDATE stock SET quantity = quantity + 1 WHERE sku = :sku")
            ctx.connection.execute(statement, {"sku": sku})
            if self.failures:
                raise self.failures.pop(0)

        @tool(effect="transactional", rollback=InBand(put_back), approval=self.approval)
        def take(ctx: ToolContext, sku: str) -> int:
            """Take one from the stock, and tell how many are left."""
            statement = text(
                "UPDATE stock SET quantity = quantity - 1 WHERE sku = :sku RETURNING quantity"
            )
            return int(ctx.connection.execute(statement, {"sku": sku}).scalar_one())

        def book_back(ctx: ToolContext, cents: int, result: int) -> int:
            self.undone.append(("book", result))
            return _book(ctx, -cents)

        @tool(effect="transactional", rollback=Compensate(book_back))
        def book(ctx: ToolContext, cents: int) -> int:
            """Book an amount; bookings are never deleted."""
            return _book(ctx, cents)

        def call_back(ctx: ToolContext, item: str) -> str:
            assert ctx.undoes_key is not None
            self.undone.append(("ship", item))
            self.carrier.cancel(ctx.idempotency_key, ctx.undoes_key)
            return "CALLED BACK"

        def find(ctx: ToolContext) -> Finding:
            return Done() if ctx.idempotency_key in self.carrier.cancelled else NotDone()

        verify = {"verify": find, "on_unknown": "verify"} if self.verifies else {}

        @tool(rollback=InBand(call_back, retry=self.retry, **verify))  # type: ignore[arg-type]  # a dict of them
        def ship(ctx: ToolContext, item: str) -> str:
            """Ship an item."""
            self.carrier.shipped[ctx.idempotency_key] = item
            return "SHIPPED"

        @tool(effect="external")
        def mail(ctx: ToolContext, to: str) -> str:
            """Write somebody a letter."""
            self.mails.append(f"{to} {ctx.idempotency_key}")
            return "MAILED"

        @tool(effect="external", rollback="none")
        def publish(ctx: ToolContext, what: str) -> str:
            """Tell the world."""
            self.mails.append(f"{what} {ctx.idempotency_key}")
            return "PUBLISHED"

        @tool(effect="none")
        def look(sku: str) -> str:
            """Look at an item."""
            return sku

        return [take, book, ship, mail, publish, look]


def _book(ctx: ToolContext, cents: int) -> int:
    statement = text(
        "INSERT INTO bookings (call_key, cents) VALUES (:key, :cents) RETURNING number"
    )
    values = {"key": ctx.idempotency_key, "cents": cents}
    return int(ctx.connection.execute(statement, values).scalar_one())


TAKE = call("take", sku="lamp")
BOOK = call("book", cents=500)
SHIP = call("ship", item="lamp")
MAIL = call("mail", to="alice")
PUBLISH = call("publish", what="news")
LOOK = call("look", sku="lamp")


class Shop:
    """The agent `shop`, whose model makes one call after the other, and a worker for it."""

    def __init__(
        self, database: Database, broker_url: str, tools: Tools, turns: Sequence[Turn]
    ) -> None:
        self.tools = tools
        self.database = database
        self.client = Client(database.url)
        self._model = ScriptedModel([*turns, say("done")])
        self.agent = Agent("shop", self._model, tools=tools.all())
        self._broker_url = broker_url
        with database.begin() as connection:
            connection.exec_driver_sql(TABLES)
            agents.register_agent(
                connection, "shop", self.agent.agent_hash, self.agent.definition()
            )
        self._workers: list[Worker] = []
        self.worker = self.new_worker(self.agent.tools)

    def new_worker(self, tools: Sequence[Tool[..., Any]]) -> Worker:
        """A worker that has seen nothing, with these tools of the agent."""
        agent = Agent("shop", self._model, tools=tools)
        self.worker = Worker(self.database.url, self._broker_url, [agent])
        self.worker.process.start()
        self._workers.append(self.worker)
        return self.worker

    def done(self) -> RunId:
        """A run that has made all its calls and is completed."""
        run_id = self.worker.start("shop")
        row = self.go_on(run_id)
        assert row.status == RunStatus.COMPLETED, row
        return run_id

    def roll_back(self, run_id: RunId, from_step: int = 0, *, by: str = "alice") -> Run:
        """The rollback, as far as it goes by itself."""
        started = self.client.rollback(run_id, from_step, by=by)
        self.go_on(started.run_id)
        return self.client.get(started.run_id)

    def go_on(self, run_id: RunId) -> Row[Any]:
        """Take steps for as long as the run is queued; its row then."""
        for _ in range(40):
            if self.worker.row(run_id).status != RunStatus.QUEUED:
                return self.worker.row(run_id)
            self.worker.step(run_id)
        raise AssertionError(f"the run is still queued: {self.worker.row(run_id)}")

    def resolved(self, run: Run, call_id: CallId, resolution: Any) -> Run:
        """The rollback after somebody has said what came of the call, as far as it goes."""
        self.client.resolve(run.run_id, call_id, resolution, by="bob")
        self.go_on(run.run_id)
        return self.client.get(run.run_id)

    def wake(self) -> None:
        """The timers' time has come."""
        with self.database.connect() as connection:
            connection.exec_driver_sql(
                "UPDATE celeriac.runs SET wake_at = now() WHERE phase = 'waiting_timer'"
            )
            waking.take_due_timers(connection)

    @property
    def stock(self) -> int:
        return int(self.rows("SELECT quantity FROM stock")[0].quantity)

    @property
    def bookings(self) -> list[int]:
        return [row.cents for row in self.rows("SELECT cents FROM bookings ORDER BY number")]

    def states(self, run_id: RunId) -> dict[str, str]:
        """The state of each call of the run, by tool."""
        return {effect.tool: effect.state.value for effect in self.client.get(run_id).effects}

    def rows(self, sql: str, *values: object) -> list[Row[Any]]:
        with self.database.connect() as connection:
            return list(connection.exec_driver_sql(sql, values))

    def violations(self) -> list[str]:
        return [found.detail for found in audit(self.database)]

    def close(self) -> None:
        self.client.close()
        for worker in self._workers:
            with suppress(Exception):
                worker.process.stop()
