"""Tasks of an existing Celery application as tools.

refund = tool_from_task(billing.refund, refusals=(billing.NotPaid,), timeout_seconds=120)
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from celery import Task

from celeriac.approval import Approval
from celeriac.docstrings import read_docstring
from celeriac.errors import InvalidAgent
from celeriac.parameters import CONTEXT, read_parameters
from celeriac.precondition import Precondition
from celeriac.recovery import Finding, OnUnknown, Recovery
from celeriac.rollback import Rollback, RollbackName, Undo, read_rollback
from celeriac.states import EffectKind
from celeriac.tool_flags import ToolFlags
from celeriac.tools import DEFAULT_TIMEOUT_SECONDS, Tool
from celeriac_tasks.called_task import CalledTask


def tool_from_task(
    task: "Task[..., Any]",
    /,
    *,
    effect: Literal["none", "external"] | EffectKind | None = None,
    name: str | None = None,
    description: str | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    version: str = "1",
    queue: str | None = None,
    refusals: tuple[type[Exception], ...] = (),
    exclusive: bool = False,
    stateful: bool | None = None,
    verify: Callable[..., Finding] | None = None,
    on_unknown: OnUnknown = "verify",
    visibility_seconds: float = 0.0,
    precondition: Precondition | None = None,
    rollback: RollbackName | Rollback | Undo = Rollback.OUT_OF_BAND,
    approval: Approval | None = None,
) -> Tool[..., Any]:
    """Make a task of an existing Celery application a tool. The task stays as it is.

    The model is shown what `tool` shows it of a function: the task's signature and docstring. A
    call is sent through the task's own application, as JSON, with the call's idempotency key as its
    task id, and waited for until `timeout_seconds` have passed; a task that no worker has begun by
    then is not begun any more. `queue` is for a queue other than the one that the application
    routes the task to.

    The call is done when the task has returned. It has failed without an effect if the task raised
    a `ToolError` or one of the `refusals`, and then the model is told; after any other exception,
    or with no answer, nobody knows, unless it is declared with `effect="none"`. A lost call is
    looked up in the application's result backend, or by `verify`; `on_unknown` and the other
    parameters are those of `tool`. There is no `retry`: that is the task's own matter.

    Celery may deliver a message twice, to a task with `acks_late` above all. What must not happen
    twice, the task has to prevent, by its `self.request.id`, which is the same each time.

    Call it after the application's settings are made. Raises `InvalidAgent` as `tool` does, and if
    the application cannot keep what is promised here: without a result backend that every process
    can ask, or with results that are not JSON.
    """
    if not isinstance(task, Task):
        raise InvalidAgent(f"{task!r} is no Celery task; give the function that has @app.task")
    called = name or str(task.name).rpartition(".")[2]
    try:
        _check_application(task)
        if effect == EffectKind.TRANSACTIONAL:
            raise InvalidAgent(
                'effect="transactional" writes in the step\'s own transaction, but a task runs in '
                "another process; give a function with @tool for that"
            )
        kind = EffectKind.EXTERNAL if effect is None else _kind(effect)
        way, undo = read_rollback(rollback)
        about = read_docstring(inspect.getdoc(task.run) or "")
        parameters = read_parameters(task.run, about.parameters)
        if parameters.context is not None:
            raise InvalidAgent("a ToolContext cannot be sent to a task")
        sent = CalledTask(task, queue, refusals, timeout_seconds)
        recovery = Recovery()
        if kind is EffectKind.EXTERNAL:
            recovery = Recovery(verify or sent.look, on_unknown, visibility_seconds)

        def send(**keywords: Any) -> Any:
            return sent.call(keywords.pop(CONTEXT), keywords)

        return Tool(
            name=called,
            description=description or about.summary,
            function=send,
            effect=kind,
            version=version,
            timeout_seconds=timeout_seconds,
            flags=ToolFlags(
                exclusive=exclusive, stateful=effect is None if stateful is None else stateful
            ),
            recovery=recovery,
            precondition=precondition,
            rollback=way,
            undo=undo,
            approval=approval,
            parameters=replace(parameters, context=CONTEXT),
        )
    except InvalidAgent as error:
        raise InvalidAgent(f"task {task.name} as a tool: {error}") from error.__cause__


def _kind(effect: str) -> EffectKind:
    try:
        return EffectKind(effect)
    except ValueError:
        raise InvalidAgent(f"effect={effect!r} is none of 'none', 'external'") from None


def _check_application(task: "Task[..., Any]") -> None:
    """That a call can be sent as JSON, and that any process can learn what came of it."""
    app: Any = task.app
    conf = app.conf
    if "json" not in {str(kind).removeprefix("application/") for kind in conf.accept_content}:
        raise InvalidAgent(
            f"accept_content is {list(conf.accept_content)}, but calls are sent as JSON: add 'json'"
        )
    if conf.result_serializer != "json":
        raise InvalidAgent(
            f"result_serializer is {conf.result_serializer!r}, and only JSON is read: a pickle "
            "from a store is code"
        )
    where = str(app.backend_cls or conf.result_backend or "disabled")
    kind = where.partition(":")[0]
    if kind in ("disabled", "rpc", "cache+memory"):
        raise InvalidAgent(
            f"the result backend is {kind}: no other process could ask it what came of a call. "
            'Give the application one that can be asked, such as Celery(backend="redis://…")'
        )
    if conf.task_always_eager:
        raise InvalidAgent("task_always_eager runs its tasks without a worker, and keeps no result")
