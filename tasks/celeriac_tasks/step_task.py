"""The Celery task `celeriac.step`.

Everything a step needs belongs to the executing process and is made there, after the fork: with the
threads and solo pools that is the worker itself, with prefork each child.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from celery import Celery
from celery.exceptions import Reject

from celeriac import model_loop
from celeriac.errors import DatabaseUnavailable
from celeriac.ids import RunId
from celeriac_tasks.celery_app import STEP_TASK
from celeriac_tasks.metrics import worker as figures
from celeriac_tasks.step import take_step
from celeriac_tasks.tracing import start_tracing, stop_tracing
from celeriac_tasks.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

START_RETRY_SECONDS = 1.0
NEVER_SECONDS = 365 * 86_400
"""Celery's own limits would kill the process in the middle of a step: the agent has the limits."""


class StepTask:
    """Installs the task in a Celery application; executes steps from `serve` until `stop`."""

    def __init__(self, app: Celery) -> None:
        self.process: WorkerProcess | None = None
        self.messages = 0  # being worked on, claimed or not
        self.on_message: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        # Everything that the application could otherwise decide for all its tasks, and that a step
        # needs in its own way (`celery_app` has the reasons).
        app.task(
            name=STEP_TASK,
            shared=False,
            acks_late=True,
            reject_on_worker_lost=True,
            ignore_result=True,
            time_limit=NEVER_SECONDS,
            soft_time_limit=NEVER_SECONDS,
            rate_limit="0",
        )(self._step)

    def serve(self, process: WorkerProcess) -> None:
        """Register this process, however long the database is away, and execute steps in it."""
        while True:
            try:
                process.start()
                break
            except DatabaseUnavailable as error:
                logger.warning("%s; trying again", error)
                time.sleep(START_RETRY_SECONDS)
        start_tracing("celeriac-worker")
        figures.STEPS_HELD.set_function(lambda: process.steps_held)
        figures.SLOTS.set(process.settings.slots if process.settings.pool == "threads" else 1)
        self.process = process
        logger.info("worker %s executes steps", process.worker_id)

    def stop(self) -> None:
        """Say goodbye, if this process is one that serves."""
        process, self.process = self.process, None
        if process is not None and process.pid == os.getpid():
            process.stop()
            model_loop.close()
            stop_tracing()

    def _step(self, run_id: str, step: int, unit: str = "") -> None:
        process = self.process
        if process is None or process.pid != os.getpid():
            # Given back, it would come again and again for as long as the database is away. The
            # scheduler publishes it after its backoff.
            logger.warning("step %s:%s was not begun: not registered as a worker", run_id, step)
            return
        if process.is_draining:
            raise Reject("this worker is shutting down", requeue=True)
        with self._lock:
            self.messages += 1
        self.on_message()
        try:
            take_step(process, RunId(run_id), step)
        except DatabaseUnavailable as error:
            # Not begun: if the claim has happened after all, the heartbeat gives it back.
            logger.warning("step %s:%s was not begun: %s", run_id, step, error)
        finally:
            with self._lock:
                self.messages -= 1
