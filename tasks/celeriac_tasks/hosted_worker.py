"""The life of a worker that belongs to somebody else's Celery application and executes steps beside
its own tasks.

It never ends, signals or delays that worker: its tasks are not ours. So what a dedicated worker
does by force is left out here. There is no watchdog. A step in flight at a shutdown is waited for
like any other task, and if the supervisor loses its patience and kills the worker, that is a death
like any other: the next worker goes on from the last commit.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast, get_args

from celery import Celery, concurrency, signals
from celery.utils.time import rate
from kombu import Exchange

from celeriac.agent import Agent
from celeriac.errors import CeleriacError, DatabaseUnavailable, InvalidInput
from celeriac.settings import Pool, Settings
from celeriac_storage.database import Database
from celeriac_storage.schema import check_schema
from celeriac_tasks.celery_app import STEP_TASK, make_app, make_queue
from celeriac_tasks.loaded_agent import load_agent
from celeriac_tasks.step_task import START_RETRY_SECONDS, StepTask
from celeriac_tasks.worker_process import WorkerProcess

logger = logging.getLogger(__name__)


class HostedWorker:
    """Follows the signals of the application's worker, which has just begun to start.

    It executes steps if it serves one of `queues`. `configure` returns the settings, on the
    application's broker, and the agents; it raises `InvalidInput` if the application cannot keep
    what Celeriac promises.
    """

    def __init__(
        self,
        app: Celery,
        queues: Sequence[str],
        configure: Callable[[], tuple[Settings, Mapping[str, Agent]]],
    ) -> None:
        self._app = app
        self._queues = queues
        self._configure = configure
        self._task = StepTask(app)
        self._make_process: Callable[[], WorkerProcess] | None = None  # None: no step comes here
        self._is_prefork = False
        for name in queues:
            _declare(app, name)
        signals.worker_init.connect(self._worker_init, weak=False)
        signals.worker_process_init.connect(self._worker_process_init, weak=False)
        signals.worker_shutting_down.connect(self._worker_shutting_down, weak=False)
        signals.worker_process_shutdown.connect(self._stop, weak=False)
        signals.worker_shutdown.connect(self._stop, weak=False)

    def _worker_init(self, sender: Any, **_: Any) -> None:
        served = [name for name in self._queues if name in self._app.amqp.queues.consume_from]
        if not served:
            return
        try:
            pool = _pool_of(sender)
            settings, agents = self._configure()
            hosted = settings.model_copy(
                update={
                    "queues": ",".join(served),
                    "pool": pool,
                    "slots": _slots_of(sender),
                }
            )
            for agent in agents.values():
                load_agent(agent)  # a model that cannot be made is told now, not in each child
            _check_task(self._app)
            _check_steps_per_task(hosted)
            _check_schema(hosted)
        except CeleriacError as error:
            # Celery logs and forgets what a signal handler raises: the worker would look healthy.
            raise SystemExit(f"Error: this worker cannot execute steps: {error}") from error
        self._make_process = lambda: _make_process(self._app, hosted, agents)
        self._is_prefork = pool == "prefork"
        if not self._is_prefork:
            self._start(self._make_process())

    def _worker_process_init(self, **_: Any) -> None:
        if self._is_prefork and self._make_process is not None:
            self._start(self._make_process())

    def _start(self, process: WorkerProcess) -> None:
        # In a thread: the application's own tasks need not wait for our database.
        threading.Thread(
            target=self._serve, args=(process,), name="celeriac-registration", daemon=True
        ).start()

    def _serve(self, process: WorkerProcess) -> None:
        while True:
            try:
                self._task.serve(process)
                return
            except Exception:
                # A database that came back without its tables, for one.
                logger.exception("this worker cannot execute steps yet; trying again")
                time.sleep(START_RETRY_SECONDS)

    def _worker_shutting_down(self, **_: Any) -> None:
        if self._task.process is not None:
            self._task.process.is_draining = True

    def _stop(self, **_: Any) -> None:
        self._task.stop()


def _declare(app: Celery, name: str) -> None:
    """Add a queue of ours to the application's own, before `-Q` and `-X` choose among them.

    Not in the `task_queues` setting: there, naming a queue takes the default one away.
    """
    queue = make_queue(name)
    app.amqp.queues.select_add(queue)
    # Celery has bound it to the application's default exchange and routing key, where it would get
    # copies of its tasks, and may have given it a priority, with which RabbitMQ would take it for
    # another queue than the one that everybody else declares.
    queue.exchange, queue.routing_key = Exchange(""), name
    queue.queue_arguments = None


def _make_process(app: Celery, settings: Settings, agents: Mapping[str, Agent]) -> WorkerProcess:
    # What it publishes goes through an application of our own, on the same broker: the host's
    # serializer, routes and delivery mode are made for its own tasks.
    own = make_app(settings)
    own.conf.broker_use_ssl = app.conf.broker_use_ssl
    return WorkerProcess(settings, own, agents)


def _pool_of(worker: Any) -> Pool:
    implementation = concurrency.get_implementation(worker.pool_cls)
    for pool in get_args(Pool):
        if implementation is concurrency.get_implementation(pool):
            if pool == "prefork" and worker.pool_start_method != "fork":
                raise InvalidInput(
                    f"worker_pool_start_method is {worker.pool_start_method}: steps need fork, or "
                    "start the worker with --pool threads"
                )
            return cast(Pool, pool)
    raise InvalidInput(
        f"the pool is {implementation.__module__}: tools and models run on threads and an event "
        f"loop of their own, so start the worker with --pool {', '.join(get_args(Pool))}"
    )


def _slots_of(worker: Any) -> int:
    """How many steps run at once; `auto` is not resolved yet, and the processors are its most."""
    return worker.concurrency if isinstance(worker.concurrency, int) else (os.cpu_count() or 1)


def _check_task(app: Celery) -> None:
    """That no `task_annotations` has taken from the task what it was installed with."""
    task = app.tasks[STEP_TASK]
    if not task.acks_late or not task.reject_on_worker_lost:
        raise InvalidInput(
            "task_annotations sets acks_late or reject_on_worker_lost for all tasks: steps need "
            f'both, so add "{STEP_TASK}": {{"acks_late": True, "reject_on_worker_lost": True}}'
        )
    if task.rate_limit and rate(task.rate_limit):
        raise InvalidInput(
            f"task_annotations sets rate_limit={task.rate_limit!r} for all tasks: it would hold "
            f'the steps of all runs back, so add "{STEP_TASK}": {{"rate_limit": None}}'
        )


def _check_steps_per_task(settings: Settings) -> None:
    if settings.pool == "prefork" and settings.steps_per_task == "auto":
        raise InvalidInput(
            "CELERIAC_STEPS_PER_TASK is auto: a child of the prefork pool does not hear of a "
            "shutdown and would go on to the end of its run. Set a number, or use --pool threads"
        )


def _check_schema(settings: Settings) -> None:
    """Raises `SchemaMismatch`; a database that is away is waited for later."""
    assert settings.database_url is not None
    database = Database(settings.database_url.get_secret_value(), connections=1)
    try:
        check_schema(database)
    except DatabaseUnavailable as error:
        logger.warning("%s; this worker executes steps as soon as it does", error)
    finally:
        database.close()  # nothing of ours may be open when prefork forks
