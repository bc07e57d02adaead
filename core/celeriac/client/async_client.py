"""The client that is awaited: of the HTTP API."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Self

from celeriac.client import (
    access,
    budgeting,
    call,
    continuing,
    executing,
    forgetting,
    proposal,
    remembering,
    run,
    starting,
    steering,
    thread,
    timing,
    undoing,
)
from celeriac.client.ask import Answer, Ask, AskedAsync
from celeriac.client.blocking_client import PATIENCE_SECONDS, TIMEOUT_SECONDS
from celeriac.client.named import run_named
from celeriac.client.vigil import Vigil
from celeriac.reports import Event, Run


class AsyncClient:
    """What `Client(url=…, token=…)` is, for asyncio. One event loop's; close it, or use `async
    with`. To cancel a call closes its connection; what it had asked for may still be done."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """As for `Client`. Raises `InvalidInput` for what cannot be used."""
        # Here: to load an HTTP client takes a moment that a client of the database need not wait.
        from celeriac.client.over_http.awaited import AsyncHttpDesk

        self._desk = AsyncHttpDesk(
            url, token, timeout_seconds=timeout_seconds, patience_seconds=patience_seconds
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._desk.address}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._desk.close()

    start = AskedAsync(starting.start)
    get = AskedAsync(run.get_run)
    runs = AskedAsync(run.list_runs)
    waits_for = AskedAsync(run.waits_for)
    cancel = AskedAsync(steering.cancel)
    interrupt = AskedAsync(steering.interrupt)
    say = AskedAsync(steering.say)
    send_event = AskedAsync(steering.send_event)
    retry = AskedAsync(continuing.retry)
    fork = AskedAsync(continuing.fork)
    replay = AskedAsync(run.replay)
    diff = AskedAsync(run.diff)
    rollback = AskedAsync(undoing.rollback)

    threads = AskedAsync(thread.list_threads)
    thread = AskedAsync(thread.get_thread)

    start_plan = AskedAsync(executing.start_plan)
    plan = AskedAsync(executing.get_plan)
    retry_plan = AskedAsync(executing.retry_plan)

    requested_calls = AskedAsync(call.requested_calls)
    submit = AskedAsync(call.submit)
    resolve = AskedAsync(call.resolve)

    approvals = AskedAsync(proposal.list_approvals)
    approval = AskedAsync(proposal.get_approval)
    approve = AskedAsync(proposal.approve)
    edit = AskedAsync(proposal.edit)
    reject = AskedAsync(proposal.reject)

    add_schedule = AskedAsync(timing.add_schedule)
    schedules = AskedAsync(timing.list_schedules)
    schedule = AskedAsync(timing.get_schedule)
    pause_schedule = AskedAsync(timing.pause_schedule)
    resume_schedule = AskedAsync(timing.resume_schedule)
    remove_schedule = AskedAsync(timing.remove_schedule)
    trigger_schedule = AskedAsync(timing.trigger_schedule)
    timers = AskedAsync(timing.list_timers)

    memories = AskedAsync(remembering.list_memories)
    search_memories = AskedAsync(remembering.search_memories)
    memory = AskedAsync(remembering.get_memory)
    remember = AskedAsync(remembering.remember)
    forget = AskedAsync(remembering.forget)
    memory_decisions = AskedAsync(remembering.list_decisions)
    export_memories = AskedAsync(remembering.export_memories)

    budgets = AskedAsync(budgeting.list_budgets)
    set_budget = AskedAsync(budgeting.set_budget)
    top_up_budget = AskedAsync(budgeting.top_up_budget)

    principals = AskedAsync(access.list_principals)
    set_principal = AskedAsync(access.set_principal)
    tokens = AskedAsync(access.list_tokens)
    create_token = AskedAsync(access.create_token)
    revoke_token = AskedAsync(access.revoke_token)
    erase_user = AskedAsync(forgetting.erase_user)

    async def events(
        self, run_id: str, after: int = 0, *, follow: bool = False
    ) -> AsyncGenerator[Event]:
        """As `Client.events`. Close what you do not read to its end: `contextlib.aclosing`."""
        stands = await self.waits_for(run_id)
        until = None if follow else stands.last_event_seq
        async with aclosing(self._desk.events(run_named(run_id), after, until=until)) as events:
            async for event in events:
                yield event

    async def wait(
        self, run_id: str, timeout_seconds: float | None = None, *, until_ended: bool = False
    ) -> Run:
        """As `Client.wait`."""
        vigil = Vigil(run_named(run_id), timeout_seconds, until_ended)
        async with aclosing(self._desk.watch(vigil)) as seen:
            *_, last = [each async for each in seen]
        return last

    async def watch(self, run_id: str, timeout_seconds: float | None = None) -> AsyncGenerator[Run]:
        """As `Client.watch`. Close what you do not read to its end: `contextlib.aclosing`."""
        vigil = Vigil(run_named(run_id), timeout_seconds, sees_each=True)
        async with aclosing(self._desk.watch(vigil)) as seen:
            async for each in seen:
                yield each

    async def _answer(self, ask: Ask[Answer]) -> Answer:
        return await self._desk.answer(ask)
