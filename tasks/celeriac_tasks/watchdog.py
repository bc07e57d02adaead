"""Notices a worker that looks alive but takes no messages any more.

After a broker reconnect a consumer has been seen to stay silent for ever. Then messages wait in the
queue while this worker has free slots; if that lasts, the worker hands back its steps and exits,
and whoever supervises it starts a fresh one.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from celery import Celery

from celeriac.errors import BrokerUnavailable
from celeriac_tasks.broker import Broker

if TYPE_CHECKING:
    from celeriac_tasks.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
SILENCE_SECONDS = 30.0
"""Longer than any reconnect with its retries takes; messages go to other workers meanwhile."""


class Watchdog:
    """A thread that ends the process when it is silent for too long with messages waiting."""

    def __init__(self, process: "WorkerProcess", app: Celery, slots: Callable[[], int]) -> None:
        self._process = process
        self._broker = Broker(app)
        self._slots = slots
        self._silent_since: float | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="celeriac-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def note_message(self) -> None:
        """A message came in."""
        self._silent_since = None

    def _watch(self) -> None:
        while not self._stopped.wait(CHECK_SECONDS):
            if not self._should_have_taken_one():
                self._silent_since = None
                continue
            now = time.monotonic()
            if self._silent_since is None:
                self._silent_since = now
            elif now - self._silent_since > SILENCE_SECONDS:
                logger.error(
                    "messages have waited for %d s while this worker had free slots and took none: "
                    "its consumer is stuck; the worker exits to be started anew",
                    SILENCE_SECONDS,
                )
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def _should_have_taken_one(self) -> bool:
        if self._process.steps_held >= self._slots():
            return False
        try:
            return any(
                self._broker.queue_length(queue) for queue in self._process.settings.queue_names
            )
        except BrokerUnavailable:
            return False  # Celery is reconnecting, as we would
