"""One call of somebody's Celery task: sent once under the call's own key, and then waited for.

look    what the result backend knows of the key; an end that is there is the answer
send    at most once, and never after the deadline; the message itself expires with it
wait    looking again and again; a run that is to stop revokes what no worker has begun

The key is the task's id, so Flower shows the call by it, and the task's own code may use
`self.request.id` as the key of what it does. If this process dies, the next worker looks under the
same id.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery, Task, states
from celery.app import backends
from kombu.exceptions import EncodeError

from celeriac.context import ToolContext
from celeriac.errors import ToolError
from celeriac.recovery import Done, Finding, NotDone, Unclear
from celeriac.secrets import redact
from celeriac_tasks.publisher import BROKER_ERRORS, broker_unavailable

logger = logging.getLogger(__name__)

FIRST_LOOK_SECONDS = 0.02
LOOK_SECONDS = 0.5  # at most, between two looks at one task
STOP_LOOK_SECONDS = 1.0  # between two looks at what is asked of the run

NOT_BEGUN = ("expired", "revoked")
"""Why a worker leaves out a task that it has not begun; `terminated` may be in its middle."""

Meta = Mapping[str, Any]


class TaskFailed(Exception):
    """The task raised, or was ended, and may have changed something before that."""


class _NotSent(Exception):
    """This attempt has sent nothing."""


@dataclass(frozen=True)
class CalledTask:
    """A task, and how its calls are made and judged."""

    task: "Task[..., Any]"
    queue: str | None
    refusals: tuple[type[Exception], ...]
    """What the task raises if it has changed nothing."""
    timeout_seconds: float

    def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> Any:
        """What the task returned.

        Raises `ToolError` if it certainly changed nothing, `TaskFailed` if it ended in another way,
        and `TimeoutError` if it did not end in time.
        """
        end_at = time.monotonic() + self.timeout_seconds
        expires_at = datetime.now(UTC) + timedelta(seconds=self.timeout_seconds)
        with self._results() as results:
            try:
                seen = self._seen_before(results, context)
                if seen["status"] == states.PENDING:
                    self._send(context.idempotency_key, arguments, end_at, expires_at)
            except _NotSent as error:
                # That says nothing of the attempts before.
                kind = ToolError if context.attempt == 1 else TaskFailed
                raise kind(f"task {self.task.name} was not sent: {error}") from error
            ended = seen if self._is_over(seen) else self._wait(results, context, end_at)
        if ended is None:
            raise TimeoutError(
                f"task {self.task.name} has not ended within {self.timeout_seconds:g} s"
            )
        return self._answer(ended)

    def look(self, context: ToolContext) -> Finding:
        """What the result backend says of a call that got lost; waits for it until its deadline."""
        left = 0.0
        if context.deadline is not None:
            left = (context.deadline - datetime.now(UTC)).total_seconds()
        end_at = time.monotonic() + min(left, self.timeout_seconds)
        with self._results() as results:
            ended = self._wait(results, context, end_at)
            if ended is None:
                seen = results.get_task_meta(context.idempotency_key, cache=False)
                if seen["status"] == states.PENDING:
                    return Unclear("the result backend knows nothing of it")
                return Unclear(f"the task is {seen['status']}")
        try:
            return Done(self._answer(ended))
        except ToolError:
            return NotDone()  # the call that is made again finds this end, and tells the model
        except TaskFailed as error:
            return Unclear(str(error))

    @contextmanager
    def _results(self) -> Iterator[Any]:
        """The application's result backend, which reads nothing but JSON.

        One for each call: Celery's own are not meant for several threads, nor for a fork.
        """
        app: Any = self.task.app
        found: Any = backends.by_url(app.backend_cls or app.conf.result_backend, app.loader)
        backend, url = found
        results = backend(app=app, url=url, accept=["json"])
        yield results
        pool = getattr(vars(results).get("client"), "connection_pool", None)
        if pool is not None:  # Redis; it would stay connected until it is collected
            pool.disconnect()

    def _seen_before(self, results: Any, context: ToolContext) -> Meta:
        """What is known of the call already, if anything is."""
        key = context.idempotency_key
        try:
            seen: Meta = results.get_task_meta(key, cache=False)
            if context.attempt > 1 and self._is_over(seen) and self._is_unclear(seen):
                # Whoever has it made once more knows better than this end, or does things once.
                results.forget(key)
                return {"status": states.PENDING}
            return seen
        except Exception as error:
            said = redact(f"{type(error).__name__}: {error}")
            raise _NotSent(f"the result backend cannot be asked ({said})") from error

    def _send(
        self, key: str, arguments: Mapping[str, Any], end_at: float, expires_at: datetime
    ) -> None:
        app: Any = self.task.app
        where: dict[str, Any] = {} if self.queue is None else {"queue": self.queue}
        with app.producer_or_acquire() as producer:
            try:
                producer.connection.ensure_connection(max_retries=1, timeout=5)
            except BROKER_ERRORS as error:
                raise _NotSent(str(broker_unavailable(app, error))) from error
            # This thread may have been given up: then nobody would wait for what it sends.
            if time.monotonic() >= end_at:
                raise TimeoutError(f"task {self.task.name} was not sent in time")
            try:
                self.task.apply_async(
                    kwargs=dict(arguments),
                    task_id=key,
                    producer=producer,
                    serializer="json",
                    expires=expires_at,
                    ignore_result=False,
                    # A message whose confirmation got lost may have arrived: no second one.
                    retry=False,
                    **where,
                )
            except EncodeError as error:
                raise _NotSent(f"its arguments cannot be written as JSON: {error}") from error
            except BROKER_ERRORS as error:
                raise broker_unavailable(app, error) from error

    def _wait(self, results: Any, context: ToolContext, end_at: float) -> Meta | None:
        """How the task ended, if it has by `end_at`."""
        pause, is_revoked = FIRST_LOOK_SECONDS, False
        stop_look_at = time.monotonic() + STOP_LOOK_SECONDS
        while True:
            try:
                seen: Meta = results.get_task_meta(context.idempotency_key, cache=False)
                if self._is_over(seen):
                    return seen
            except Exception as error:  # noqa: BLE001 - a backend of any kind, which may be back soon
                said = redact(f"{type(error).__name__}: {error}")
                logger.warning("task %s cannot be looked at: %s", context.idempotency_key, said)
            now = time.monotonic()
            if now >= end_at:
                return None
            if not is_revoked and now >= stop_look_at:
                stop_look_at = now + STOP_LOOK_SECONDS
                if is_revoked := context.is_to_stop:
                    self._revoke(context.idempotency_key)
            time.sleep(min(pause, end_at - now))
            pause = min(1.5 * pause, LOOK_SECONDS)

    def _revoke(self, key: str) -> None:
        """Have workers leave the task out that have not begun it. One that is running goes on: to
        end it in its middle would leave nobody who knows what it did."""
        app: Celery = self.task.app
        try:
            app.control.revoke(key)
        except BROKER_ERRORS as error:
            logger.warning("task %s is not revoked: %s", key, broker_unavailable(app, error))

    @staticmethod
    def _is_over(seen: Meta) -> bool:
        return seen["status"] in states.READY_STATES

    def _is_unclear(self, ended: Meta) -> bool:
        """Whether this end does not tell what the task did."""
        try:
            self._answer(ended)
        except ToolError:
            return False
        except TaskFailed:
            return True
        return False

    def _answer(self, ended: Meta) -> Any:
        name, result = self.task.name, ended["result"]
        if ended["status"] == states.SUCCESS:
            return result
        if ended["status"] == states.REVOKED:
            reason = str(result.args[0]) if result.args else ""
            # With acks_late another worker may have begun it before, and died.
            if reason in NOT_BEGUN and not self.task.acks_late:
                raise ToolError(f"no worker began task {name} in time: it was {reason}")
            raise TaskFailed(f"task {name} was {reason or 'revoked'}, perhaps in its middle")
        if isinstance(result, (ToolError, self.refusals)):
            raise ToolError(str(result)) from result
        raise TaskFailed(f"task {name} raised {type(result).__name__}: {result}")
