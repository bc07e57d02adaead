"""An agent that remembers its users, with a model that makes the calls a test tells it to.

The steps are taken in the test's own process, so that a test says when a worker is there.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from celeriac import Agent, Client, MemoryPolicy, tool
from celeriac.ids import DEFAULT_TENANT, RunId, TenantId, ThreadId, UserId, new_run_id
from celeriac.messages import dump_message, user_message
from celeriac.scripted import ScriptedModel, ToolCall, Turn, say
from celeriac.states import RunStatus
from celeriac_storage import agents, starting, waking
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from celeriac_storage.new_run import NewRun
from tests.worker_in_process import Worker

ASKS = "Please remember that I prefer aisle seats."
WISH = {"key": "seat", "value": "Prefers aisle seats", "user_said": ASKS}


def wish(**changed: object) -> ToolCall:
    """A call of `remember`, by default of what `ASKS` asks for; None leaves an argument out."""
    arguments = {**WISH, **changed}
    return ToolCall(
        "remember", {name: each for name, each in arguments.items() if each is not None}
    )


class Rememberer:
    """The agent `rememberer`; its model makes the turns of `talk` one by one, and then is done."""

    def __init__(
        self, database: Database, broker_url: str, policy: MemoryPolicy | None = None
    ) -> None:
        self.database = database
        self.page = "There is nothing here."
        self.turns: list[Turn] = []
        self.asked: list[list[str]] = []  # at each question, the texts that the model is shown

        def script(messages: Sequence[Any]) -> Turn:
            parts = [part for message in messages for part in message.parts]
            self.asked.append([str(part.content) for part in parts if hasattr(part, "content")])
            return self.turns.pop(0) if self.turns else say("done")

        @tool(effect="none")
        def browse(address: str) -> str:
            """Read a web page."""
            return f"{address}: {self.page}"

        self.agent = Agent(
            "rememberer",
            ScriptedModel(script),
            tools=[browse],
            memory=policy or MemoryPolicy(),
        )
        with database.begin() as connection:
            agents.register_agent(
                connection, "rememberer", self.agent.agent_hash, self.agent.definition()
            )
        self.client = Client(database.url)
        self._broker_url = broker_url
        self._workers: list[Worker] = []
        self.new_worker()

    def new_worker(self) -> Worker:
        """Another worker, which has seen nothing."""
        self.worker = Worker(self.database.url, self._broker_url, [self.agent])
        self.worker.process.start()
        self._workers.append(self.worker)
        return self.worker

    def talk(
        self,
        text: str,
        *turns: Turn | ToolCall,
        user: str = "alice",
        tenant: str = DEFAULT_TENANT,
        thread: str | None = None,
    ) -> RunId:
        """A run of that user's, in which the model makes these turns, taken as far as it goes."""
        run_id = self.start(text, *turns, user=user, tenant=tenant, thread=thread)
        self.go_on(run_id)
        return run_id

    def start(
        self,
        text: str,
        *turns: Turn | ToolCall,
        user: str = "alice",
        tenant: str = DEFAULT_TENANT,
        thread: str | None = None,
    ) -> RunId:
        self.turns = [Turn(calls=(each,)) if isinstance(each, ToolCall) else each for each in turns]
        run_id = new_run_id()
        with self.database.begin() as connection:
            starting.start(
                connection,
                NewRun(
                    run_id=run_id,
                    agent="rememberer",
                    input=text,
                    user_message=dump_message(user_message(text)),
                    limits={},
                    thread_id=ThreadId(thread or f"t-{run_id}"),
                    user_id=UserId(user),
                    tenant_id=TenantId(tenant),
                ),
            )
        return run_id

    def go_on(self, run_id: RunId) -> Row[Any]:
        """Take steps for as long as the run is queued; its row then."""
        for _ in range(20):
            row = self.worker.row(run_id)
            if row.status != RunStatus.QUEUED:
                return row
            self.worker.step(run_id)
        raise AssertionError(f"the run is still queued: {self.worker.row(run_id)}")

    def wake(self, run_id: RunId) -> None:
        """The time has come at which the run's step is tried again."""
        with self.database.connect() as connection:
            connection.exec_driver_sql(
                "UPDATE celeriac.runs SET wake_at = now() WHERE run_id = %s", (run_id,)
            )
            waking.take_due_timers(connection)

    def memories(self, user: str = "alice") -> dict[str, Any]:
        """What is remembered of a user, by key."""
        rows = self.rows(
            "SELECT memory_key, content FROM celeriac.memories"
            " WHERE user_id = %s AND deleted_at IS NULL",
            user,
        )
        return {row.memory_key: row.content for row in rows}

    def reasons(self) -> list[str]:
        """Why each candidate was kept, or not, in their order."""
        rows = self.rows("SELECT reason FROM celeriac.memory_decisions ORDER BY decision_id")
        return [row.reason for row in rows]

    def decision(self) -> Row[Any]:
        """The only one."""
        (row,) = self.rows("SELECT * FROM celeriac.memory_decisions")
        return row

    def everything(self) -> str:
        """All rows of all tables as text."""
        names = self.rows(
            "SELECT relname FROM pg_class WHERE relkind = 'r'"
            " AND relnamespace = 'celeriac'::regnamespace"
        )
        return "\n".join(
            str(row[0])
            for name in names
            for row in self.rows(f"SELECT to_jsonb(each)::text FROM celeriac.{name[0]} AS each")
        )

    def rows(self, sql: str, *values: object) -> list[Row[Any]]:
        with self.database.connect() as connection:
            return list(connection.exec_driver_sql(sql, values))

    def violations(self) -> list[str]:
        return [found.detail for found in audit(self.database)]

    def close(self) -> None:
        self.client.close()
        for worker in self._workers:
            worker.process.stop()
