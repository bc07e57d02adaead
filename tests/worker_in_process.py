"""A real `WorkerProcess` in the test's own process, whose steps are taken message by message."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Row

from celeriac import Agent
from celeriac.ids import CallId, RunId, ThreadId, call_id, new_run_id, new_thread_id
from celeriac.messages import dump_message, user_message
from celeriac.settings import load_settings
from celeriac.states import RunStatus
from celeriac_storage import starting
from celeriac_storage.new_run import NewRun
from celeriac_tasks.celery_app import make_app
from celeriac_tasks.step import take_step
from celeriac_tasks.worker_process import WorkerProcess

CONNECTIONS = 2
FIRST_CALL = call_id(0, 0)


class Worker:
    """A worker in this process, its runs, and a table that its tools write to."""

    def __init__(self, database_url: str, broker_url: str, agents: Sequence[Agent]) -> None:
        settings = load_settings(
            database_url=database_url,
            broker_url=broker_url,
            connections=CONNECTIONS,
            active_steps=1,
        )
        self.process = WorkerProcess(
            settings, make_app(settings), {agent.name: agent for agent in agents}
        )
        self.database = self.process.database

    def start(self, agent: str) -> RunId:
        run_id = new_run_id()
        thread_id: ThreadId = new_thread_id()
        with self.database.begin() as connection:
            starting.start(
                connection,
                NewRun(
                    run_id=run_id,
                    agent=agent,
                    input="hello",
                    user_message=dump_message(user_message("hello")),
                    limits={},
                    thread_id=thread_id,
                ),
            )
        return run_id

    def step(self, run_id: RunId) -> None:
        """In a thread, as with the threads pool: the main thread may be told to end."""
        with ThreadPoolExecutor(1) as slot:
            slot.submit(take_step, self.process, run_id, self.row(run_id).step).result()

    def run(self, agent: str) -> RunId:
        """A new run, taken as far as it goes."""
        run_id = self.start(agent)
        for _ in range(10):
            self.step(run_id)
            if self.row(run_id).status != RunStatus.QUEUED:
                return run_id
        raise AssertionError(f"the run is still queued: {self.row(run_id)}")

    def row(self, run_id: RunId) -> Row[Any]:
        return self._one("SELECT * FROM celeriac.runs WHERE run_id = %s", run_id)

    def effect(self, run_id: RunId, call: CallId = FIRST_CALL) -> Row[Any]:
        return self._one(
            "SELECT * FROM celeriac.effects WHERE run_id = %s AND call_id = %s", run_id, call
        )

    def quantity(self) -> int:
        return int(self._one("SELECT quantity FROM stock")[0])

    def _one(self, query: str, *values: str) -> Row[Any]:
        with self.database.connect() as connection:
            return connection.exec_driver_sql(query, values).one()

    def assert_connections_are_clean(self) -> None:
        """All of the pool's at once, so that none is missed."""
        with ExitStack() as stack:
            for _ in range(CONNECTIONS):
                connection = stack.enter_context(self.database.connect())
                driver = connection.connection.driver_connection
                assert isinstance(driver, psycopg.Connection)
                assert driver.autocommit
                assert driver.info.transaction_status is TransactionStatus.IDLE
                limits = connection.exec_driver_sql(
                    "SELECT current_setting('statement_timeout'), current_setting('lock_timeout')"
                ).one()
                assert tuple(limits) == ("0", "0"), "a tool's limits outlived its transaction"
