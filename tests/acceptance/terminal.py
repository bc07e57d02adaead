"""What somebody at a terminal does with a running Celeriac, and what the rows then say."""

import json
import signal
from typing import Any

from typer.testing import CliRunner, Result

from celeriac.cli.main import app
from celeriac_storage.database import Database
from tests.acceptance import agents
from tests.processes import Processes, TestProcess
from tests.waiting import eventually

DONE_SECONDS = 60.0


class Terminal:
    """`celeriac …` on the test's own servers, with the workers and schedulers of the test."""

    agents = agents.__name__  # what the workers serve

    def __init__(self, database: Database, processes: Processes) -> None:
        self.database = database
        self.processes = processes
        with database.begin() as connection:
            connection.exec_driver_sql(agents.CREATE_TABLES)

    def open(self, workers: int = 2, test_points: str = "") -> list[TestProcess]:
        """Start the scheduler and workers; one of them dies that comes first to an armed point."""
        self.processes.start_scheduler()
        return self.processes.start_workers(workers, self.agents, test_points=test_points)

    def start_worker(self, test_points: str = "") -> TestProcess:
        return self.processes.start_worker(self.agents, test_points=test_points)

    def try_celeriac(self, *arguments: str) -> Result:
        """Run the command, with the settings that the processes have."""
        result = CliRunner().invoke(app, list(arguments), env=self.processes.environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def celeriac(self, *arguments: str, exit_code: int = 0) -> Any:
        """What the command prints as JSON."""
        done = self.try_celeriac(*arguments, "--json")
        assert done.exit_code == exit_code, done.stderr
        return json.loads(done.stdout)

    def run(self, agent: str, value: object, *options: str, exit_code: int = 0) -> Any:
        """Run an agent to its end, or until a person is needed, and return how it stands."""
        return self.celeriac(
            "run", agent, "--input", json.dumps(value), "--wait", *options, exit_code=exit_code
        )

    def begin(self, agent: str, value: object, *options: str) -> str:
        """Start a run and return its id."""
        started = self.celeriac("run", agent, "--input", json.dumps(value), *options)
        run_id: str = started["run_id"]
        return run_id

    def show(self, run_id: str) -> Any:
        return self.celeriac("show", run_id)

    def shown(self, run_id: str, **expected: object) -> Any:
        """The run, as soon as it is shown with these values."""
        return eventually(
            lambda: self.show(run_id),
            until=lambda run: expected.items() <= run.items(),
            deadline_seconds=DONE_SECONDS,
            what=f"run {run_id} shown with {expected}",
        )

    def completed(self, run_id: str) -> Any:
        return self.shown(run_id, status="completed")

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Look at the rows past the command line."""
        with self.database.connect() as connection:
            return [tuple(row) for row in connection.exec_driver_sql(sql, values)]

    def execute(self, sql: str, *values: object) -> None:
        with self.database.begin() as connection:
            connection.exec_driver_sql(sql, values)

    def calls(self, run_id: str) -> list[str]:
        """The tool of each call that began, whatever came of it; those of the module `agents`."""
        rows = self.query("SELECT tool FROM acceptance.calls WHERE run_id = %s ORDER BY at", run_id)
        return [tool for (tool,) in rows]

    def rows_of(self, run_id: str) -> list[tuple[Any, ...]]:
        """All rows of the run in all tables, as text."""
        tables = self.query(
            "SELECT table_name FROM information_schema.columns"
            " WHERE table_schema = 'celeriac' AND column_name = 'run_id' ORDER BY 1"
        )
        selects = " UNION ALL ".join(
            f"SELECT '{table}', t::text FROM celeriac.{table} AS t WHERE run_id = %s"
            for (table,) in tables
        )
        return sorted(self.query(selects, *[run_id] * len(tables)))

    def wait_for_death(self, worker: TestProcess) -> None:
        """Until the worker has come to its armed point, and died there."""
        assert worker.wait() == -signal.SIGKILL

    @property
    def workers_killed(self) -> int:
        ends = [process.wait() for process in self.processes.started if not process.is_running]
        return ends.count(-signal.SIGKILL)

    @property
    def living_workers(self) -> list[str]:
        listed = self.try_celeriac("workers", "--json")
        assert listed.exit_code == 0, listed.stderr
        workers = map(json.loads, listed.stdout.splitlines())
        return [worker["worker_id"] for worker in workers if worker["alive"]]

    def assert_sound(self) -> None:
        """No invariant is broken."""
        assert self.celeriac("audit") == {"ok": True, "violations": []}
