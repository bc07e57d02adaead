"""The project in `project/`, copied to a folder of its own and run with the installed wheel."""

import os
import shutil
import subprocess
from pathlib import Path

from celery import Celery
from kombu import Connection, Exchange, Queue

from celeriac.client import Client
from celeriac.reports import Run
from celeriac.states import RunStatus
from celeriac_storage.audit import audit
from celeriac_storage.database import Database
from tests.processes import Processes, TestProcess
from tests.servers import TestBroker
from tests.waiting import eventually

PROJECT = Path(__file__).with_name("project")
START_SECONDS = 100.0
"""The first one compiles everything that was installed, on a machine where others test as well."""

DONE_SECONDS = 60.0


class Shop:
    """Starts its workers, sends it tasks and runs, and looks at what they did."""

    def __init__(
        self,
        environment: Path,
        database: Database,
        broker: TestBroker,
        processes: Processes,
        folder: Path,
    ) -> None:
        self.database = database
        self.processes = processes
        self.folder = folder
        self.queue = broker.queue
        self.own_queue = f"shop-{broker.queue}"
        self.client = Client(database.url, broker.url)
        self._broker = broker
        self._bin = environment
        shutil.copytree(PROJECT, folder)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "CELERIAC_DATABASE_URL": database.url,
            "CELERIAC_BROKER_URL": broker.url,
            "CELERIAC_QUEUES": broker.queue,
            "SHOP_BROKER_URL": broker.url,
            "SHOP_QUEUE": self.own_queue,
            "C_FORCE_ROOT": "1",  # Celery will not take pickles as root otherwise
        }

    def start_worker(self, *options: str, **environment: str) -> TestProcess:
        """`celery -A tasks worker`, in a process group of its own; not waited for."""
        name = f"celery-{len(self.processes.started) + 1}"
        output_path = self.folder / f"{name}.log"
        with output_path.open("wb") as output:
            popen = subprocess.Popen(
                [
                    self._bin / "celery",
                    "-A",
                    "tasks",
                    "worker",
                    "--loglevel",
                    "INFO",
                    "--hostname",
                    f"{name}@%h",
                    *options,
                ],
                cwd=self.folder,
                env=self.environment | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = TestProcess(name, popen, output_path)
        self.processes.started.append(process)
        return process

    def wait_until_it_executes_steps(self, worker: TestProcess, processes: int = 1) -> None:
        eventually(
            lambda: self.processes.worker_ids(worker),
            until=lambda ids: len(ids) == processes or not worker.is_running,
            deadline_seconds=START_SECONDS,
            what=f"{worker.name} registered",
        )
        assert worker.is_running, worker.output

    def wait_until_ready(self, worker: TestProcess) -> None:
        """Until Celery says that it takes messages."""
        eventually(
            lambda: " ready." in worker.output or not worker.is_running,
            deadline_seconds=START_SECONDS,
            what=f"{worker.name} ready",
        )
        assert worker.is_running, worker.output

    def send(self, task: str, parcel: str) -> None:
        """Call one of the shop's own tasks, as another program of its would."""
        with Celery("shop", broker=self._broker.url, set_as_current=False) as app:
            app.conf.task_default_queue = self.own_queue
            app.send_task(f"tasks.{task}", [parcel])

    def start_run(self) -> str:
        return self.client.start("packer", "a parcel").run_id

    def wait_for_file(
        self, name: str, lines: int = 0, *, deadline_seconds: float = DONE_SECONDS
    ) -> list[str]:
        """The file's lines, as soon as there are so many."""
        return eventually(
            lambda: (self.folder / name).read_text().split(),
            until=lambda found: len(found) >= lines,
            deadline_seconds=deadline_seconds,
            what=f"{lines} lines in {name}",
        )

    def make_file(self, name: str) -> None:
        (self.folder / name).touch()

    def completed(self, run_id: str) -> Run:
        run = self.client.wait(run_id, timeout_seconds=DONE_SECONDS)
        assert run.status is RunStatus.COMPLETED, run
        assert [found.detail for found in audit(self.database)] == []
        return run

    def close(self) -> None:
        self.client.close()
        if self._broker.kind == "amqp":
            with Connection(self._broker.url) as connection:
                channel = connection.default_channel
                Queue(self.own_queue, channel=channel).delete()
                Exchange(self.own_queue, channel=channel).delete()
