"""Notices a worker that looks alive but takes no messages any more.

After a broker reconnect a consumer has been seen to stay silent for ever. Then messages wait in the
queue while this worker has free slots; if that lasts, the worker hands back its steps and exits,
and whoever supervises it starts a fresh one. (The parent of a prefork pool has no watchdog: it does
not know how busy its children are.)
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from celery import Celery

from celeriac.errors import BrokerUnavailable
from celeriac_tasks.broker import Broker

logger = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
SILENCE_SECONDS = 30.0
"""Longer than any reconnect with its retries takes; messages go to other workers meanwhile."""


class Watchdog:
    """A thread that calls `give_up` when the process is silent for too long with messages
    waiting.
    """

    def __init__(
        self,
        app: Celery,
        queues: Sequence[str],
        *,
        has_free_slots: Callable[[], bool],
        give_up: Callable[[], None],
        check_seconds: float = CHECK_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._broker = Broker(app)
        self._queues = queues
        self._has_free_slots = has_free_slots
        self._give_up = give_up
        self._check_seconds = check_seconds
        self._silence_seconds = silence_seconds
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
        while not self._stopped.wait(self._check_seconds):
            if not self._should_have_taken_one():
                self._silent_since = None
                continue
            now = time.monotonic()
            if self._silent_since is None:
                self._silent_since = now
            elif now - self._silent_since > self._silence_seconds:
                logger.error(
                    "messages have waited for %g s while this worker had free slots and took none: "
                    "its consumer is stuck; the worker exits to be started anew",
                    self._silence_seconds,
                )
                self._give_up()
                return

    def _should_have_taken_one(self) -> bool:
        if not self._has_free_slots():
            return False
        try:
            return any(self._broker.queue_length(queue) for queue in self._queues)
        except BrokerUnavailable:
            return False  # Celery is reconnecting, as we would
