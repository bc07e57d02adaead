"""Calling a tool's function, within its time and with its outcome sorted."""

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from celeriac import model_loop
from celeriac.codec import JsonValue, stored_form
from celeriac.context import ToolContext
from celeriac.errors import InvalidArguments, ToolError
from celeriac.secrets import redact
from celeriac.states import EffectKind
from celeriac.tools import Tool
from celeriac_storage.database import driver_of, ends_transaction
from celeriac_tasks import observing

MAX_ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Returned:
    """The tool returned: its result in stored form."""

    result: JsonValue


@dataclass(frozen=True, slots=True)
class Raised:
    """The tool raised. `is_definite`: it certainly changed nothing. `is_retried`: by its tool's
    policy the call is worth another attempt."""

    error: dict[str, JsonValue]
    is_definite: bool
    is_retried: bool = False


Outcome = Returned | Raised


def call_in_time(tool: Tool[..., Any], context: ToolContext, arguments: JsonValue) -> Outcome:
    """Call the tool and wait at most `tool.timeout_seconds`.

    An `async def` tool is cancelled at its deadline. A plain one cannot be: its thread is left
    behind, and whatever it still does is not waited for.
    """

    def call() -> Any:
        if tool.is_async:
            return model_loop.run(
                tool.function(**tool.call_arguments(arguments, context)),
                timeout_seconds=tool.timeout_seconds,
            )
        return in_time(lambda: tool.function(**tool.call_arguments(arguments, context)), tool)

    return _observed(call, tool, context)


def call_here(tool: Tool[..., Any], context: ToolContext, arguments: JsonValue) -> Outcome:
    """Call the tool in this thread, which owns the step's transaction.

    An error that took the whole transaction with it is raised as it is; any other is the tool's own
    and told to the model.
    """
    driver = driver_of(context.connection)  # now: afterwards the tool may have closed it
    return _observed(
        lambda: here(lambda: tool.function(**tool.call_arguments(arguments, context))),
        tool,
        context,
        passes=lambda error: ends_transaction(error, driver),
    )


def here(call: Callable[[], Any]) -> Any:
    """What `call` returns, called in this thread, with its wish to end the process refused."""
    try:
        return call()
    except (SystemExit, asyncio.CancelledError) as error:
        if threading.current_thread() is threading.main_thread():
            raise  # prefork and solo: it may be the worker itself that is told to end
        raise RuntimeError(f"the tool raised {error!r}") from error


def in_time(call: Callable[[], Any], tool: Tool[..., Any]) -> Any:
    """What `call` returns, called in a thread of its own and waited for as long as the tool says.

    Raises `TimeoutError`.
    """
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised again in the waiting thread
            future.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in a tool ends the tool only
            future.set_exception(RuntimeError(f"the tool raised {error!r}"))

    # A thread for each call, not a pool: one that hangs for ever must not take a place from others.
    # It sees the caller's context variables, as an `async def` tool does.
    threading.Thread(
        target=contextvars.copy_context().run,
        args=(run,),
        name=f"celeriac-tool-{tool.name}",
        daemon=True,
    ).start()
    return future.result(tool.timeout_seconds)


def _observed(
    call: Callable[[], Any],
    tool: Tool[..., Any],
    context: ToolContext,
    passes: Callable[[Exception], bool] = lambda _: False,
) -> Outcome:
    with observing.tool_call(tool, context) as seen:
        outcome = _sorted(call, tool, passes)
        if isinstance(outcome, Returned):
            seen.outcome = "returned"
        else:
            seen.outcome = "failed" if outcome.is_definite else "unclear"
            seen.error_kind = str(outcome.error["kind"])
        return outcome


def _sorted(
    call: Callable[[], Any],
    tool: Tool[..., Any],
    passes: Callable[[Exception], bool],
) -> Outcome:
    try:
        return Returned(stored_form(call()))
    except InvalidArguments as error:
        return Raised(error_of("invalid_arguments", str(error)), is_definite=True)
    except ToolError as error:
        details = error_of("tool_error", str(error))
        return Raised(details, is_definite=True, is_retried=is_retried(tool, error))
    except TimeoutError as error:
        said = str(error) or f"tool {tool.name} took longer than {tool.timeout_seconds:g} s"
        return _indefinite(tool, "timeout", said, error)
    except concurrent.futures.CancelledError as error:
        return _indefinite(tool, type(error).__name__, "the call was cancelled", error)
    except Exception as error:
        if passes(error):
            raise
        return _indefinite(tool, type(error).__name__, str(error), error)


def _indefinite(tool: Tool[..., Any], kind: str, message: str, error: BaseException) -> Raised:
    # Of a tool that changes nothing elsewhere the call is simply over.
    is_definite = tool.effect is not EffectKind.EXTERNAL
    return Raised(
        error_of(kind, message), is_definite, is_retried=is_definite and is_retried(tool, error)
    )


def is_retried(tool: Tool[..., Any], error: BaseException) -> bool:
    """Whether the tool's policy names this error, if it came before any effect."""
    retry = tool.recovery.retry
    return retry is not None and isinstance(error, retry.on)


def error_of(kind: str, message: str) -> dict[str, JsonValue]:
    """The stored form of an error: without secrets, and not too long."""
    return {"kind": kind, "message": redact(message)[:MAX_ERROR_CHARACTERS]}
