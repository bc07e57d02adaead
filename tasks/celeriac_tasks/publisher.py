"""Putting a step on the broker."""

from typing import Any

import redis
from celery import Celery
from kombu import Queue
from kombu import exceptions as kombu_errors

from celeriac.errors import BrokerUnavailable
from celeriac.ids import RunId
from celeriac.secrets import redact, redact_url
from celeriac_tasks.broker_url import is_redis_url
from celeriac_tasks.celery_app import STEP_TASK, make_queue

BROKER_ERRORS = (
    kombu_errors.OperationalError,
    # What kombu thinks that no reconnecting helps against, it raises as it is.
    kombu_errors.ConnectionError,
    kombu_errors.ChannelError,
    redis.RedisError,
    OSError,
)
"""What a broker that is away, or that refuses, makes of a request; `broker_unavailable` has words
for it."""

_RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
"""One more try at once: a pooled connection may have died unnoticed. More is the scheduler's."""


class Publisher:
    """Publishes steps; keeps its connections, so it belongs to one process."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._queues: dict[str, Queue] = {}
        # On Redis a queue is the key that its first message makes. What kombu does to declare one
        # before each message, and nothing comes of it there, was a sixth of publishing.
        self._declared: tuple[()] | None = () if is_redis_url(str(app.conf.broker_url)) else None

    def publish(self, run_id: RunId, step: int, queue: str) -> None:
        """Tell some worker that this step is due. Raises `BrokerUnavailable`."""
        try:
            self._app.send_task(
                STEP_TASK,
                args=(run_id, step),
                argsrepr=repr((run_id, step)),  # else Celery looks for what is long or circular
                kwargsrepr="{}",
                task_id=f"{run_id}:{step}",  # so that a run is found in Flower by its id
                queue=self._queue(queue),  # type: ignore[arg-type]  # it takes a Queue as well
                declare=self._declared,
                retry=True,
                retry_policy=_RETRY,
                ignore_result=True,
            )
        except BROKER_ERRORS as error:
            raise broker_unavailable(self._app, error) from error

    def warm(self) -> None:
        """Connect now, so that the first failover need not wait. Raises `BrokerUnavailable`."""
        try:
            with self._app.producer_or_acquire() as producer:
                producer.connection.ensure_connection(max_retries=1, timeout=5)
                producer.channel  # noqa: B018 - the property opens it
        except BROKER_ERRORS as error:
            raise broker_unavailable(self._app, error) from error

    def close(self) -> None:
        """Let go of the connections. They stay in kombu's pool, which the process's other Celery
        applications on this broker share, so they are not ours to close."""
        self._app.close()

    def _queue(self, name: str) -> Queue:
        # Never by name alone: Celery would declare a queue that is not in this process's settings
        # as durable, and RabbitMQ refuses that where a worker has declared it as ours.
        if name not in self._queues:
            self._queues[name] = make_queue(name)
        return self._queues[name]


def broker_unavailable(app: Celery, error: Exception) -> BrokerUnavailable:
    url: Any = app.conf.broker_url
    where, why = redact_url(str(url)), redact(str(error)) or type(error).__name__
    if isinstance(error, kombu_errors.ChannelError):
        return BrokerUnavailable(
            f"the broker at {where} refuses ({why}): check that its user may do that, and that "
            "nobody has declared the queue otherwise"
        )
    return BrokerUnavailable(
        f"the broker at {where} does not answer ({why}): check that it runs and that its URL is "
        "right"
    )
