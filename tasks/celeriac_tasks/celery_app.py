"""The Celery application: each setting with the reason it stands here.

The broker carries hints. A message names a step; the database says whether that step is still to be
done. So a message may come twice, late or never, and these settings only make that rare and cheap.
"""

import socket
from typing import Any

from celery import Celery
from kombu import Queue

from celeriac.settings import Settings
from celeriac_tasks.broker_url import check_broker_url, is_redis_url

STEP_TASK = "celeriac.step"

VISIBILITY_TIMEOUT_SECONDS = 600
"""When Redis gives an unacknowledged message to somebody else. It is the last net: the scheduler
has long published the step again, and a duplicate is dropped by its claim."""

UNACKED_KEY = "celeriac:unacked"
"""Where Redis holds the messages that workers have taken and not yet acknowledged."""


def make_app(settings: Settings) -> Celery:
    """A Celery application on the configured broker, with the step task not yet installed.

    Raises `InvalidInput` for a broker URL that cannot be used.
    """
    assert settings.broker_url is not None
    url = settings.broker_url.get_secret_value()
    check_broker_url(url)
    app = Celery("celeriac", broker=url, set_as_current=False)
    app.conf.update(
        # Only JSON crosses the broker: a pickle from a store is code.
        task_serializer="json",
        accept_content=["json"],
        # A step's result is rows; nobody asks Celery for it.
        task_ignore_result=True,
        # A message lives until its step is over, and outlives a pool child that is killed.
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        # A message that waits inside a worker cannot be taken by an idle one, and dies with it.
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=is_redis(settings),
        # Hints need no disk: on RabbitMQ a durable queue costs an fsync for each step.
        task_default_delivery_mode="transient",
        task_default_queue=settings.queue_names[0],
        task_queues=[make_queue(name) for name in settings.queue_names],
        # Steps in flight commit to Postgres whether the broker is there or not.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,  # a worker waits for its broker as long as it takes
        broker_connection_timeout=5,
        broker_heartbeat=10,  # RabbitMQ: a dead connection is noticed in 20 s instead of 4 minutes
        broker_transport="celeriac_tasks.redis_transport:Transport" if is_redis(settings) else None,
        broker_transport_options=_transport_options(settings),
        worker_send_task_events=settings.task_events,
        # A prefork child imports its agents and registers before it says that it is up.
        worker_proc_alive_timeout=30,
    )
    return app


def is_redis(settings: Settings) -> bool:
    assert settings.broker_url is not None
    return is_redis_url(settings.broker_url.get_secret_value())


def make_queue(name: str) -> Queue:
    """A queue of hints: not durable, so that no broker writes them to disk."""
    return Queue(name, durable=False)


def _transport_options(settings: Settings) -> dict[str, Any]:
    if not is_redis(settings):
        # Without confirms: a hint that gets lost is published again by the scheduler.
        return {"confirm_publish": False, "connect_timeout": 5}
    return {
        "visibility_timeout": VISIBILITY_TIMEOUT_SECONDS,
        # Kept apart from those of any other Celery application on this Redis: whoever sweeps gives
        # back all that are older than his own timeout, so tasks of theirs that take an hour would
        # run twice.
        "unacked_key": UNACKED_KEY,
        "unacked_index_key": f"{UNACKED_KEY}:index",
        "unacked_mutex_key": f"{UNACKED_KEY}:mutex",
        # With kombu's defaults the sweep for lost messages comes every 100 s, 90 s late.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        # A network that swallows packets looks like an idle broker: bound every wait.
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "socket_keepalive_options": {
            getattr(socket, name): seconds
            for name, seconds in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
            if hasattr(socket, name)  # macOS has no TCP_KEEPIDLE
        },
        "health_check_interval": 10,
        "retry_on_timeout": True,
    }
