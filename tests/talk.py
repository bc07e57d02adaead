"""An agent that people talk to while it works: its first turn makes calls, then it answers.

The steps are taken in the test's own process, so a test says when; what it wants said while the
model thinks or a tool is called, it says from inside.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from celeriac import Agent, Client, external_tool, tool
from celeriac.client import NotDone
from celeriac.ids import RunId
from celeriac.scripted import ScriptedModel, ToolCall, Turn, say
from celeriac.states import EffectState, RunStatus
from celeriac.tools import Tool
from celeriac_storage import deadlines
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from tests.worker_in_process import Worker

Calls = Sequence[tuple[str, Mapping[str, object]]]


class Talk:
    """The agent `talker`; `calls` are those of its first turn, and `noted` what `note` has done."""

    def __init__(
        self,
        database: Database,
        broker_url: str,
        calls: Calls,
        more_tools: Sequence[Tool[..., Any]] = (),
    ) -> None:
        self.database = database
        self.client = Client(database.url)
        self.shown: list[list[str]] = []  # at each question, what stands in all messages
        self.noted: list[str] = []
        self.during_think: list[Callable[[], object]] = []  # each is done once
        self.during_call: list[Callable[[], object]] = []
        self.run_id = RunId("")
        made = Turn(calls=tuple(ToolCall(name, arguments) for name, arguments in calls))

        def script(messages: Sequence[Any]) -> Turn:
            parts = [part for message in messages for part in message.parts]
            self.shown.append([str(part.content) for part in parts if hasattr(part, "content")])
            _do_all(self.during_think)
            return made if len(self.shown) == 1 else say(f"answer {len(self.shown)}")

        @tool(effect="external")
        def note(text: str) -> str:
            """Take a note."""
            self.noted.append(text)
            _do_all(self.during_call)
            return f"noted {text}"

        @external_tool
        def scan(shelf: str) -> str:
            """Have somebody scan a shelf."""
            raise AssertionError(f"no worker executes this: {shelf}")

        agent = Agent("talker", ScriptedModel(script), tools=[note, scan, *more_tools])
        self.worker = Worker(database.url, broker_url, [agent])
        self.worker.process.start()

    def start(self) -> RunId:
        self.run_id = self.worker.start("talker")
        return self.run_id

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.worker.step(self.run_id)

    def go_on(self) -> RunStatus:
        """Take steps for as long as the run is queued; where it stands then."""
        for _ in range(20):
            if self.row.status != RunStatus.QUEUED:
                break
            self.step()
        return RunStatus(self.row.status)

    def fail(self) -> None:
        """Have the run's deadline pass, of what is asked for elsewhere somebody says it was not
        done."""
        with self.database.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE celeriac.runs SET deadline_at = clock_timestamp() WHERE run_id = %s",
                (self.run_id,),
            )
        with self.database.begin() as connection:
            assert deadlines.end(connection, self.run_id)
        for effect in self.client.get(self.run_id).effects:
            if effect.state is EffectState.UNKNOWN:
                self.client.resolve(self.run_id, effect.call_id, NotDone())

    @property
    def row(self) -> Row[Any]:
        return self.worker.row(self.run_id)

    @property
    def stands(self) -> tuple[str, str | None]:
        return self.row.status, self.row.phase

    @property
    def roles(self) -> list[str]:
        rows = self.query(
            "SELECT role FROM celeriac.messages WHERE run_id = %s ORDER BY position", self.run_id
        )
        return [row[0] for row in rows]

    @property
    def states(self) -> list[str]:
        """Of the run's effects, in order."""
        return [effect.state for effect in self.client.get(self.run_id).effects]

    @property
    def events(self) -> list[str]:
        return [event.type for event in self.client.events(self.run_id)]

    def query(self, sql: str, *values: object) -> list[Row[Any]]:
        with self.database.connect() as connection:
            return list(connection.exec_driver_sql(sql, values))

    def close(self) -> None:
        self.client.close()
        self.worker.process.stop()
        assert audit(self.database) == []


def _do_all(deeds: list[Callable[[], object]]) -> None:
    while deeds:
        deeds.pop(0)()
