"""An agent whose turns a test lays out, and which keeps what its model was shown at each."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage

from celeriac import Agent, Approval, Client, Limits, ToolContext, external_tool, tool
from celeriac.codec import JsonValue
from celeriac.ids import RunId
from celeriac.messages import dump_message
from celeriac.scripted import ScriptedModel, Turn, call, say
from celeriac.states import RunStatus
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from tests.worker_in_process import Worker

Question = list[dict[str, JsonValue]]

BROKEN = Turn(error=ValueError("the model is broken"))
TURNS = (call("look", shelf="A"), call("order", what="ink"), say("ink is on its way"))


class Retold:
    """The agent `teller`, a worker that has it, and what its calls have done."""

    def __init__(self, database: Database, broker_url: str, **more: Any) -> None:
        self.database = database
        self.client = Client(database.url)
        self.turns: list[Turn] = []
        self.asked: list[Question] = []
        self.orders: list[tuple[str, str]] = []  # what was ordered, and under which key

        def script(messages: Sequence[ModelMessage]) -> Turn:
            self.asked.append([dump_message(message) for message in messages])
            return self.turns.pop(0)

        @tool(effect="none")
        def look(shelf: str, times: int = 1) -> str:
            """Look at a shelf."""
            return f"{shelf}: empty" * times

        @tool(effect="external")
        def order(context: ToolContext, what: str) -> str:
            """Order something."""
            self.orders.append((what, context.idempotency_key))
            return f"{what} ordered"

        @tool(effect="external", approval=Approval(on_reject="end"))
        def pay(context: ToolContext, amount: int) -> str:
            """Pay for it."""
            self.orders.append((f"paid {amount}", context.idempotency_key))
            return "paid"

        @external_tool
        def scan(shelf: str) -> str:
            """Have somebody scan a shelf."""
            raise AssertionError(f"no worker executes this: {shelf}")

        more.setdefault("tools", [look, order, pay, scan])
        more.setdefault("limits", Limits())
        self.agent = Agent("teller", ScriptedModel(script), "Tell what there is.", **more)
        self._broker_url, self._is_retired = broker_url, False
        self.worker = Worker(database.url, broker_url, [self.agent])
        self.worker.process.start()

    def retire(self) -> None:
        """Have no worker any more."""
        if not self._is_retired:
            self.worker.process.stop()
        self._is_retired = True

    def deploy(self, agent: Agent) -> None:
        """Have the worker replaced by one with other code."""
        self.retire()
        self._is_retired = False
        self.worker = Worker(self.database.url, self._broker_url, [agent])
        self.worker.process.start()

    def tell(self, *turns: Turn, thread_id: str | None = None) -> RunId:
        """A run that has these turns, taken as far as it goes."""
        self.turns = list(turns)
        return self.go_on(self.client.start("teller", "hello", thread_id=thread_id).run_id)

    def go_on(self, run_id: RunId, *turns: Turn) -> RunId:
        """Take the run's steps for as long as it is queued."""
        self.turns += turns
        for _ in range(20):
            if self.worker.row(run_id).status != RunStatus.QUEUED:
                return run_id
            self.worker.step(run_id)
        raise AssertionError(f"run {run_id} is still queued")

    def texts(self, question: Question) -> list[Any]:
        """What stands in the messages of a question."""
        return [
            part.get("content", part.get("args"))
            for message in question
            for part in message["parts"]  # type: ignore[union-attr]  # as messages are stored
            if isinstance(part, dict)
        ]

    def outcome(self, run_id: RunId) -> tuple[str, str | None]:
        run = self.client.get(run_id)
        return run.status, run.outcome

    def close(self) -> None:
        self.client.close()
        self.retire()
        assert audit(self.database) == []
