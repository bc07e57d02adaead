"""The life of a worker that executes nothing but steps: `celeriac worker`.

It may therefore end its process when a step outlasts the grace, or when its consumer is stuck.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from celery import Celery, signals

from celeriac.agent import Agent
from celeriac.errors import CeleriacError, InvalidAgent
from celeriac.settings import Settings
from celeriac_tasks.metrics.exporter import start_exporter
from celeriac_tasks.metrics.worker import REGISTRY
from celeriac_tasks.step_task import StepTask
from celeriac_tasks.tracing import stop_tracing
from celeriac_tasks.watchdog import Watchdog
from celeriac_tasks.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

DRAIN_POLL_SECONDS = 0.05


class DedicatedWorker:
    """Follows the signals of the application's worker, from its start to its last step."""

    def __init__(self, app: Celery, settings: Settings, agents: Mapping[str, Agent]) -> None:
        self._app = app
        self._settings = settings
        self._agents = agents
        self._task = StepTask(app)
        self._watchdog: Watchdog | None = None
        self._prefork: Any = None  # the Celery worker whose children execute the steps
        signals.worker_init.connect(self._worker_init, weak=False)
        signals.worker_process_init.connect(self._worker_process_init, weak=False)
        signals.worker_shutting_down.connect(self._worker_shutting_down, weak=False)
        signals.worker_process_shutdown.connect(self._stop, weak=False)
        signals.worker_shutdown.connect(self._stop, weak=False)

    def _worker_init(self, sender: Any, **_: Any) -> None:
        if "prefork" not in str(sender.pool_cls):
            self._start()
            start_exporter(self._settings, REGISTRY)
            self._watchdog = Watchdog(
                self._app,
                self._settings.queue_names,
                has_free_slots=lambda: self._task.messages < int(sender.concurrency or 1),
                give_up=lambda: self._drain(exit_code=1),  # so that a supervisor restarts it
            )
            self._task.on_message = self._watchdog.note_message
            self._watchdog.start()
        else:
            self._prefork = sender
            if self._settings.metrics_port is not None:
                logger.warning(
                    "no /metrics of this worker: each of prefork's children counts for itself, and "
                    "they cannot share the port; the figures of the rows are the API's"
                )

    def _worker_process_init(self, **_: Any) -> None:
        if self._task.process is None:  # prefork's child; with the solo pool it has been made
            self._start()
            # A SIGTERM to the whole group reaches the children too: hand back, then go.
            signal.signal(signal.SIGTERM, lambda *_: self._drain(exit_code=0))
            # Our parent's word that the grace is over. (billiard takes SIGQUIT for itself.)
            signal.signal(signal.SIGUSR2, lambda *_: self._drain(exit_code=0, grace_seconds=0.0))

    def _start(self) -> None:
        """Register, however long the database is away. Ends the process if it cannot work."""
        try:
            self._task.serve(WorkerProcess(self._settings, self._app, self._agents))
        # Celery logs and forgets what a signal handler raises: the worker would look healthy.
        except InvalidAgent as error:
            logger.error("this worker cannot execute steps: %s", error)
            raise SystemExit(1) from error
        except Exception as error:
            logger.exception("this worker cannot execute steps")
            raise SystemExit(1) from error

    def _worker_shutting_down(self, **_: Any) -> None:
        if self._task.process is not None:
            self._drain()
        elif self._prefork is not None:
            threading.Thread(target=self._end_children, daemon=True).start()

    def _end_children(self) -> None:
        """After the grace, tell prefork's children to hand back: Celery would wait for ever."""
        time.sleep(self._settings.grace_seconds)
        for pid in self._prefork.pool.info["processes"]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR2)

    def _drain(self, exit_code: int | None = None, grace_seconds: float | None = None) -> None:
        """Take no new step, let those in flight finish for the grace period, then hand them back.

        With an exit code the process then ends itself; without, Celery's warm shutdown ends it, if
        no step is left that it would wait for. Called from signal handlers, so the work is done in
        a thread: the interrupted code may hold the very locks that it needs.
        """
        process = self._task.process
        if process is None or process.is_draining:
            return
        process.is_draining = True
        if grace_seconds is None:
            grace_seconds = self._settings.grace_seconds
        threading.Thread(
            target=self._finish, args=(process, exit_code, grace_seconds), daemon=True
        ).start()

    def _finish(self, process: WorkerProcess, exit_code: int | None, grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds
        while process.is_busy and time.monotonic() < deadline:
            time.sleep(DRAIN_POLL_SECONDS)
        if exit_code is None and not process.is_busy:
            return
        try:
            process.stop()
        except CeleriacError as error:
            logger.warning("worker %s could not say goodbye: %s", process.worker_id, error)
        finally:
            stop_tracing()
            # Threads that a tool or model call keeps busy would hold the process for ever.
            os._exit(exit_code or 0)

    def _stop(self, **_: Any) -> None:
        if self._watchdog is not None:
            self._watchdog.stop()
        self._task.stop()
