"""Putting a step on the broker."""

from typing import Any

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from celeriac.errors import BrokerUnavailable
from celeriac.ids import RunId
from celeriac.secrets import redact, redact_url
from celeriac_tasks.celery_app import STEP_TASK

_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
"""One more try at once: a pooled connection may have died unnoticed. The scheduler does the rest."""


class Publisher:
    """Publishes steps; keeps its connections, so it belongs to one process."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def publish(self, run_id: RunId, step: int, queue: str) -> None:
        """Tell some worker that this step is due. Raises `BrokerUnavailable`."""
        try:
            self._app.send_task(
                STEP_TASK,
                args=(run_id, step),
                task_id=f"{run_id}:{step}",  # so that a run is found in Flower by its id
                queue=queue,
                retry=True,
                retry_policy=_RETRY,
                ignore_result=True,
            )
        except (OperationalError, redis.RedisError, OSError) as error:
            raise broker_unavailable(self._app, error) from error

    def warm(self) -> None:
        """Connect now, so that the first failover does not pay for it. Raises `BrokerUnavailable`."""
        try:
            with self._app.producer_or_acquire() as producer:
                producer.connection.ensure_connection(max_retries=1, timeout=5)
                producer.channel  # noqa: B018 - the property opens it
        except (OperationalError, redis.RedisError, OSError) as error:
            raise broker_unavailable(self._app, error) from error


def broker_unavailable(app: Celery, error: Exception) -> BrokerUnavailable:
    url: Any = app.conf.broker_url
    return BrokerUnavailable(
        f"the broker at {redact_url(str(url))} does not answer "
        f"({redact(str(error)) or type(error).__name__}): check that it runs and that "
        "CELERIAC_BROKER_URL is right"
    )
