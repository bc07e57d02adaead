"""What a workflow's code may ask for: the first parameter of its function (docs/workflows.md)."""

import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from celeriac import seconds
from celeriac.approval import Approval
from celeriac.backoff import Backoff
from celeriac.codec import JsonValue
from celeriac.errors import ActivityFailed, InvalidInput
from celeriac.tools import Tool
from celeriac.workflows.entry import End, EndKind, EntryKind
from celeriac.workflows.promise import AllOf, Branch, EntryPromise, First, FirstOf, Promise, Within
from celeriac.workflows.reading import Reader, as_json, reader_of

if TYPE_CHECKING:
    from celeriac.agent import Agent
    from celeriac.workflows.definition import Workflow
    from celeriac.workflows.flow import Flow

T = TypeVar("T")
RETRY_BACKOFF = Backoff(first_seconds=2.0, factor=2.0, cap_seconds=600.0, max_attempts=1000)


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """What people decided. `arguments` are the details, as they were when they were approved."""

    is_approved: bool
    reason: str | None
    arguments: Mapping[str, JsonValue]


class WorkflowContext:
    """All that the code of a workflow may wait for, and all that may differ from run to run.

    What is asked for begins at once; awaiting it waits for its end. An end that is an error is
    raised there as `ActivityFailed`.
    """

    def __init__(self, flow: "Flow", workflow: "Workflow[Any]") -> None:
        self._flow = flow
        self._workflow = workflow

    @property
    def run_id(self) -> str:
        """The workflow's own, by which it is told of events. A tool's context has its call's."""
        return self._flow.run_id

    # ------------------------------------------------------------------------ runs of their own

    @overload
    def activity(
        self, tool: Tool[..., Coroutine[Any, Any, T]], /, *, retries: int = 0, **arguments: Any
    ) -> Promise[T]: ...
    @overload
    def activity(
        self, tool: Tool[..., T], /, *, retries: int = 0, **arguments: Any
    ) -> Promise[T]: ...

    def activity(
        self, tool: Tool[..., Any], /, *, retries: int = 0, **arguments: Any
    ) -> Promise[Any]:
        """Call one of the workflow's tools, in a run of its own, on whichever worker is free.

        A call that has failed, and that certainly had no effect, is made anew up to `retries`
        times, each time after a sleep: one to two seconds at first, then twice as long as before.

        Raises `InvalidArguments` at once if the tool cannot take them, and nothing is written.
        """
        known = self._workflow.tool(tool.name)
        if known is not tool:
            raise InvalidInput(
                f"workflow {self._workflow.name} has another tool of the name {tool.name}"
            )
        return self.tool(tool.name, arguments, retries=retries)

    def tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        retries: int = 0,
        output: Any = None,
        label: str | None = None,
    ) -> Promise[Any]:
        """The same by the tool's name, with its arguments in a dict.

        The result has the type `output`, if that is given, and else the one that the tool declares;
        `Any` leaves it as it is in the log. `label` says in the log what the entry is for.
        """
        tool = self._workflow.tool(name)
        valid = tool.validate(as_json(dict(arguments)))
        read = reader_of(tool) if output is None else Reader(output, "ctx.tool")

        def call() -> Promise[Any]:
            return self._entry(EntryKind.ACTIVITY, name, dict(valid), read, label=label)

        return self._flow.branch(self._retried(call, retries)) if retries else call()

    async def _retried(self, call: Callable[[], Promise[T]], retries: int) -> T:
        for attempt in range(1, retries + 1):
            try:
                return await call()
            except ActivityFailed as failed:
                if not failed.is_certain:
                    raise
            await self.sleep(RETRY_BACKOFF.delay_seconds(attempt, random=self.random))
        return await call()

    @overload
    def model(
        self, prompt: str, /, *, instructions: str = "", label: str | None = None
    ) -> Promise[str]: ...
    @overload
    def model(
        self, prompt: str, /, *, output: type[T], instructions: str = "", label: str | None = None
    ) -> Promise[T]: ...

    def model(
        self,
        prompt: str,
        /,
        *,
        output: Any = str,
        instructions: str = "",
        label: str | None = None,
    ) -> Promise[Any]:
        """Ask the workflow's model one question, without tools; the answer has the type `output`.

        Instructions are added to those of the workflow.
        """
        self._workflow.check_model()
        arguments: dict[str, JsonValue] = {"prompt": prompt}
        if instructions:
            arguments["instructions"] = instructions
        read = Reader(output, "ctx.model")
        terms: JsonValue = {"schema": read.schema}
        return self._entry(EntryKind.MODEL, "model", arguments, read, terms, label)

    def child(
        self,
        agent: "Agent | str",
        input: Any = None,  # noqa: A002 - the word of the interface
        *,
        output: Any = None,
        label: str | None = None,
    ) -> Promise[Any]:
        """Have a run of an agent or of a workflow do something; its result is what comes back.

        `output` and `label` as of `tool`.
        """
        child = self._workflow.child(agent)
        task = child.validate_input(as_json(input))
        read = child.read_result if output is None else Reader(output, "ctx.child")
        return self._entry(EntryKind.CHILD, child.name, task, read, label=label)

    # ------------------------------------------------------------------------ waiting

    def sleep(self, duration: timedelta | float) -> Promise[None]:
        """Let so much time pass, in seconds if it is a number. The run holds no worker."""
        wait = _seconds(duration)
        if wrong := seconds.problem("duration", wait, least=0):
            raise InvalidInput(f"ctx.sleep: {wrong}")
        return self._entry(EntryKind.TIMER, "sleep", {"seconds": float(wait)}, _nothing)

    def sleep_until(self, time: datetime) -> Promise[None]:
        """Wait until a time, which must say its offset."""
        if time.utcoffset() is None:
            raise InvalidInput(f"ctx.sleep_until: {time.isoformat()} does not say its offset")
        at = time.astimezone(UTC).isoformat()
        return self._entry(EntryKind.TIMER, "sleep_until", {"time": at}, _nothing)

    def wait_event(self, name: str, *, timeout: timedelta | float | None = None) -> Promise[Any]:
        """Wait until somebody tells the run of an event of that name; its data is what comes.

        Each event goes to one who waits, in the order in which both came. One that was told before
        anybody waits for it is kept. `timeout` as of `within`.
        """
        if not name:
            raise InvalidInput("ctx.wait_event: the name is empty")
        event = self._flow.events.promise(name)
        return event if timeout is None else self.within(timeout, event)

    def wait_approval(
        self,
        intent: str,
        details: Mapping[str, Any] | None = None,
        *,
        approval: Approval | None = None,
    ) -> Promise[ApprovalDecision]:
        """Have people decide about something that the code does afterwards.

        The run holds no worker while they think. They may change the details.
        """
        arguments: dict[str, JsonValue] = {
            "intent": intent,
            "details": as_json(dict(details or {})),
        }
        terms = (approval or Approval()).to_json()
        return self._entry(EntryKind.APPROVAL, "approval", arguments, _decision, terms)

    # ------------------------------------------------------------------------ several at once

    def gather(self, *awaited: Awaitable[Any]) -> Promise[tuple[Any, ...]]:
        """All results, in the order of what is awaited: what ctx gives, or coroutines that use it,
        which run side by side from when this code waits.

        It waits for all of them, also if one fails, and then raises the first error in that order.
        """
        return AllOf([self._promise(each) for each in awaited], self._flow.failures.note_together)

    def first(self, *awaited: Awaitable[Any]) -> Promise[First]:
        """Which one ends first, counted from 0, and its result; an error of it is raised.

        Coroutines among the others end where they are, as if cancelled, with all that they have
        begun. What ctx has given goes on, and can still be awaited.
        """
        if not awaited:
            raise InvalidInput("ctx.first: nothing is given that could end")
        return self._first(*awaited)

    def _first(self, *awaited: Awaitable[Any]) -> FirstOf:
        members = [self._promise(each) for each in awaited]
        given = {at for at, each in enumerate(awaited) if each is not members[at]}
        branches = {members[at] for at in given}

        def drop(loser: Promise[Any]) -> None:
            if loser in branches and isinstance(loser, Branch):
                self._flow.drop(loser)

        return FirstOf(members, drop)

    def within(self, limit: timedelta | float, awaited: Awaitable[T]) -> Promise[T]:
        """The result, unless so much time passes before: then awaiting this raises `TimeoutError`.

        A coroutine ends then where it is. What ctx has given goes on, and can still be awaited.
        """
        first = self._first(awaited, self.sleep(limit))
        return Within(first, _seconds(limit))

    # ------------------------------------------------------------------------ recorded values

    def now(self) -> datetime:
        """The time at which this turn of the run was begun, by the database's clock, in UTC."""
        now = self._flow.now.astimezone(UTC).isoformat()
        return datetime.fromisoformat(str(self.value("now", now)))

    def random(self) -> float:
        """A number from 0 to below 1."""
        drawn = random.random()  # noqa: S311 - for chance, not for secrets
        return float(str(self.value("random", drawn)))

    def uuid(self) -> uuid.UUID:
        """A random UUID (version 4)."""
        return uuid.UUID(str(self.value("uuid", str(uuid.uuid4()))))

    def value(self, name: str, value: JsonValue, *, label: str | None = None) -> JsonValue:
        """`value`, when the code comes here first; from then on what the log says that it was."""
        return self._flow.ask(EntryKind.VALUE, name, value=value, label=label).value

    def version(self, change_id: str) -> bool:
        """Whether this run does what was changed: False for one that came past here before."""
        return self._flow.version(change_id)

    def continue_as_new(self, input: Any = None) -> NoReturn:  # noqa: A002
        """End here, and begin again with another input and an empty log, as the same run."""
        self._flow.stop(End(EndKind.CONTINUED, self._workflow.validate_input(as_json(input))))

    def _entry(
        self,
        kind: EntryKind,
        name: str,
        arguments: JsonValue,
        read: Callable[[Any], T],
        terms: JsonValue = None,
        label: str | None = None,
    ) -> EntryPromise[T]:
        asked = self._flow.ask(kind, name, arguments, terms=terms, label=label)
        return self._flow.promise(asked, read)

    def _promise(self, awaited: Awaitable[Any]) -> Promise[Any]:
        if isinstance(awaited, Promise):
            return awaited
        if isinstance(awaited, Coroutine):
            branch: Branch[Any] = self._flow.branch(awaited)
            return branch
        raise InvalidInput(
            f"{awaited!r} is neither what ctx gives to be awaited nor a coroutine that uses it"
        )


def _seconds(duration: timedelta | float) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def _nothing(_: Any) -> None:
    return None


def _decision(value: Any) -> ApprovalDecision:
    return ApprovalDecision(value["is_approved"], value.get("reason"), value.get("arguments") or {})
