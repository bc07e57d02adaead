"""The client that waits for each answer: of a database, or of the HTTP API."""

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

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
from celeriac.client.ask import Answer, Ask, Asked
from celeriac.client.database import DatabaseDesk
from celeriac.client.named import run_named, tenant_or_default
from celeriac.client.vigil import Vigil
from celeriac.errors import InvalidInput
from celeriac.reports import Event, Run, Worker
from celeriac_storage import workers

if TYPE_CHECKING:
    from celeriac.client.over_http.blocking import HttpDesk

TIMEOUT_SECONDS = 30.0
PATIENCE_SECONDS = 15.0


class Client:
    """Talks to one Celeriac database, or to the HTTP API that serves one. Thread-safe; connects at
    first use; close it, or use `with`.

    On a database it sees the runs of one tenant, and every method may raise `DatabaseUnavailable`
    and `SchemaMismatch`. Without a `broker_url` it publishes nothing and leaves that to a
    scheduler, which is notified when a new run commits; with one, a run starts a little sooner.

    Over HTTP it acts as the token's user, in that user's tenant, within the token's roles: every
    method may raise `Unauthenticated`, `RoleMissing` and `Unavailable`. Whatever changes something
    is sent with an idempotency key, so that it is done once however often it is tried.
    """

    def __init__(
        self,
        database_url: str | None = None,
        broker_url: str | None = None,
        *,
        tenant: str | None = None,
        url: str | None = None,
        token: str | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Give the database's URL, or `url` and `token` of the API. `tenant` is `default` where it
        is not given; over HTTP the token has it.

        Over HTTP each answer is waited for `timeout_seconds`; a service that cannot be reached, or
        is busy, is asked again for `patience_seconds`, and then `Unavailable` or `RateLimited` is
        raised. Raises `InvalidInput` for what cannot be used.
        """
        self._desk: "DatabaseDesk | HttpDesk"  # noqa: UP037 - one of them is imported below
        if url is not None and database_url is None:
            if broker_url is not None or tenant is not None:
                raise InvalidInput(
                    "over HTTP there is no broker_url, and the token says the tenant"
                )
            # Here: to load an HTTP client takes a moment that one of the database need not wait.
            from celeriac.client.over_http.blocking import HttpDesk

            self._desk = HttpDesk(
                url, token, timeout_seconds=timeout_seconds, patience_seconds=patience_seconds
            )
        elif database_url is not None and url is None and token is None:
            self._desk = DatabaseDesk(database_url, broker_url, tenant_or_default(tenant))
        else:
            raise InvalidInput("give a client either a database_url, or a url and its token")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._desk.address}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections. The client may be used again and then opens new ones."""
        self._desk.close()

    start = Asked(starting.start)
    get = Asked(run.get_run)
    runs = Asked(run.list_runs)
    waits_for = Asked(run.waits_for)
    cancel = Asked(steering.cancel)
    interrupt = Asked(steering.interrupt)
    say = Asked(steering.say)
    send_event = Asked(steering.send_event)
    retry = Asked(continuing.retry)
    fork = Asked(continuing.fork)
    replay = Asked(run.replay)
    diff = Asked(run.diff)
    rollback = Asked(undoing.rollback)

    threads = Asked(thread.list_threads)
    thread = Asked(thread.get_thread)

    start_plan = Asked(executing.start_plan)
    plan = Asked(executing.get_plan)
    retry_plan = Asked(executing.retry_plan)

    requested_calls = Asked(call.requested_calls)
    submit = Asked(call.submit)
    resolve = Asked(call.resolve)

    approvals = Asked(proposal.list_approvals)
    approval = Asked(proposal.get_approval)
    approve = Asked(proposal.approve)
    edit = Asked(proposal.edit)
    reject = Asked(proposal.reject)

    add_schedule = Asked(timing.add_schedule)
    schedules = Asked(timing.list_schedules)
    schedule = Asked(timing.get_schedule)
    pause_schedule = Asked(timing.pause_schedule)
    resume_schedule = Asked(timing.resume_schedule)
    remove_schedule = Asked(timing.remove_schedule)
    trigger_schedule = Asked(timing.trigger_schedule)
    timers = Asked(timing.list_timers)

    memories = Asked(remembering.list_memories)
    search_memories = Asked(remembering.search_memories)
    memory = Asked(remembering.get_memory)
    remember = Asked(remembering.remember)
    forget = Asked(remembering.forget)
    memory_decisions = Asked(remembering.list_decisions)
    export_memories = Asked(remembering.export_memories)

    budgets = Asked(budgeting.list_budgets)
    set_budget = Asked(budgeting.set_budget)
    top_up_budget = Asked(budgeting.top_up_budget)

    principals = Asked(access.list_principals)
    set_principal = Asked(access.set_principal)
    tokens = Asked(access.list_tokens)
    create_token = Asked(access.create_token)
    revoke_token = Asked(access.revoke_token)
    erase_user = Asked(forgetting.erase_user)

    def events(self, run_id: str, after: int = 0, *, follow: bool = False) -> Iterator[Event]:
        """The run's events with a `seq` above `after`, in order and without a gap.

        With `follow` it waits for those still to come and ends after the terminal one, whatever
        happens to the connection meanwhile. To resume later, pass the last `seq` that you have
        seen. Raises `UnknownRun` at once.
        """
        named = run_named(run_id)
        if isinstance(self._desk, DatabaseDesk):
            return self._desk.events(named, after, follow=follow)
        stands = self.waits_for(named)
        return self._desk.events(named, after, until=None if follow else stands.last_event_seq)

    def wait(
        self, run_id: str, timeout_seconds: float | None = None, *, until_ended: bool = False
    ) -> Run:
        """Wait until the run has ended or needs a person's attention, and return it.

        With `until_ended` it keeps waiting while the run needs attention, until somebody has
        settled it. A pause (for a timer, a worker, its thread …) is always waited out. Raises
        `TimeoutError`, which leaves the run as it is, and `UnknownRun`. It tolerates a database
        that is down for half a minute, or a service that is for `patience_seconds`.
        """
        vigil = Vigil(run_named(run_id), timeout_seconds, until_ended)
        *_, last = self._desk.watch(vigil)
        return last

    def watch(self, run_id: str, timeout_seconds: float | None = None) -> Iterator[Run]:
        """The run now and after each change, until it has ended or needs a person's attention.

        Pauses, and what raises, are as in `wait`.
        """
        return self._desk.watch(Vigil(run_named(run_id), timeout_seconds, sees_each=True))

    def workers(self) -> list[Worker]:
        """The live workers and the ones that left last, each with the runs it holds. They serve all
        tenants, so this takes a client of the database."""
        if not isinstance(self._desk, DatabaseDesk):
            raise InvalidInput(
                "workers serve all tenants, so the API does not tell of them; use the database"
            )
        return self._desk.read(workers.list_workers)

    def _answer(self, ask: Ask[Answer]) -> Answer:
        return self._desk.answer(ask)
