"""A question that may take long, asked by a thread that must not wait."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Question:
    """Whether a process is ready. Each asking has a thread of its own, one at a time: a server that
    is frozen holds up its own start and nothing else."""

    def __init__(self, ask: Callable[[int], bool]) -> None:
        self._ask = ask
        self._asking: threading.Thread | None = None
        self._yes_of: int | None = None  # the pid that was said to be ready

    def is_so(self, pid: int) -> bool:
        """What the last asking said of this process; begins the next one. Does not block."""
        if self._asking is None or not self._asking.is_alive():
            if self._yes_of == pid:
                return True
            self._asking = threading.Thread(target=self._answer, args=(pid,), daemon=True)
            self._asking.start()
        return False

    def _answer(self, pid: int) -> None:
        try:
            self._yes_of = pid if self._ask(pid) else None
        except Exception:  # whatever it is, the service is not known to be ready
            logger.exception("cannot tell whether process %s is ready", pid)
