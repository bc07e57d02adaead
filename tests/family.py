"""Agents that call each other, on a worker in the test's own process, step by step."""

from collections.abc import Sequence
from typing import Any

from celeriac import Agent
from celeriac.client import Client
from celeriac.ids import RunId
from celeriac.reports import Run
from celeriac.states import RunStatus
from celeriac_storage import timers
from celeriac_storage.audit import audit
from tests.worker_in_process import Worker

MOST_STEPS = 100


class Family:
    """A worker, its client, and what it leaves."""

    def __init__(self, database_url: str, broker_url: str, agents: Sequence[Agent]) -> None:
        self.worker = Worker(database_url, broker_url, agents)
        self.worker.process.start()
        self.client = Client(database_url)
        self.database = self.worker.database

    def start(self, agent: str, value: object = "go", **options: Any) -> RunId:
        return self.client.start(agent, value, **options).run_id

    def step(self, run_id: str) -> None:
        self.worker.step(RunId(run_id))

    def go_on(self, *, but: Sequence[str] = ()) -> None:
        """Take the steps of all queued runs until none is left, except those of agents in `but`."""
        for _ in range(MOST_STEPS):
            queued = self.rows(
                "SELECT run_id FROM celeriac.runs WHERE status = 'queued' AND agent <> ALL (%s)"
                " ORDER BY run_id",
                list(but),
            )
            if not queued:
                return
            for (run_id,) in queued:
                self.step(run_id)
        raise AssertionError("there is always another step")

    def run(self, run_id: str) -> Run:
        return self.client.get(run_id)

    def children(self, run_id: str) -> list[RunId]:
        return [child.run_id for child in self.run(run_id).children]

    def states(self, run_id: str) -> list[str]:
        return [str(effect.state) for effect in self.run(run_id).effects]

    def events(self, run_id: str) -> list[str]:
        return [event.type for event in self.client.events(run_id)]

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self.database.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(sql, values)]

    def execute(self, sql: str, *values: object) -> None:
        with self.database.begin() as connection:
            connection.exec_driver_sql(sql, values)

    def violations(self) -> list[str]:
        return [f"{found.run_id}: {found.detail}" for found in audit(self.database)]

    def close(self) -> None:
        self.client.close()
        self.worker.process.stop()


def ended(family: Family, run_id: str) -> tuple[RunStatus, Any]:
    """How the run stands, and its result or the kind of its error."""
    run = family.run(run_id)
    return run.status, run.result if not isinstance(run.error, dict) else run.error["kind"]


def let_time_pass(family: Family) -> None:
    """All timers that are set are due, and fire."""
    family.execute("UPDATE celeriac.timers SET due_at = clock_timestamp() WHERE fired_at IS NULL")
    with family.database.begin() as connection:
        timers.fire_entries(connection)
