"""A step's commit, tried until it is known how it went."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
from sqlalchemy.exc import DBAPIError

from celeriac.errors import DatabaseUnavailable
from celeriac_storage.claims import Claim
from celeriac_storage.database import is_lost_race
from celeriac_tasks.worker_process import WorkerProcess

logger = logging.getLogger(__name__)

COMMIT_RETRY_SECONDS = 0.2
MAX_TRIES = 5  # of a transaction that loses races: deadlocks, serialisation failures

T = TypeVar("T")


def patiently(
    worker: WorkerProcess, claim: Claim, deadline_seconds: float, commit: Callable[[], T]
) -> T:
    """Make a commit, however long the database is away: a model's answer is worth waiting for.

    A commit whose answer got lost may have happened; the fence then tells, and the scheduler
    publishes what it queued. One that loses a race has not, and is no fault of the step's.
    """
    give_up_at = time.monotonic() + deadline_seconds
    tries = 0
    while True:
        try:
            return commit()
        except DatabaseUnavailable:
            if worker.is_draining or time.monotonic() > give_up_at:
                raise
            time.sleep(COMMIT_RETRY_SECONDS)
        except (DBAPIError, psycopg.Error) as error:
            tries += 1
            if not is_lost_race(error) or tries == MAX_TRIES:
                raise
            logger.info("run %s: step %s: %s", claim.run_id, claim.step, error)
            time.sleep(random.uniform(0, COMMIT_RETRY_SECONDS))  # noqa: S311 - apart, no secret
