"""What clients ask for to go on from what a run has done: a retry or a fork."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from celeriac.client.ask import Ask
from celeriac.client.first_step import FirstStep
from celeriac.client.named import run_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Flow, refuse_speaker
from celeriac.client.run import ask_run, read_started
from celeriac.ids import RunId, ThreadId, UserId, new_run_id, new_thread_id
from celeriac.reports import Retried, Started
from celeriac.states import RunStatus
from celeriac_storage import forks, resolving
from celeriac_storage.tenancy import Transactions

if TYPE_CHECKING:
    from celeriac.codec import JsonValue


@dataclass(slots=True)
class Retry(Operation[Retried]):
    """Let a run that needs attention try its step again, or another run the last step of one that
    has failed; of a plan, what is left of it. `first_step` as with `Start`."""

    run_id: RunId
    by: UserId
    first_step: FirstStep | None = None
    retry_id: RunId = field(default_factory=new_run_id)
    _forked: forks.Forked | None = field(default=None, init=False)

    def act(self, connection: Connection) -> Retried:
        self._forked = None
        if not forks.has_failed(connection, self.run_id):
            return Retried(self.run_id, resolving.retry(connection, self.run_id, self.by))
        is_published = self.first_step is not None
        if forks.has_plan(connection, self.run_id):
            self._forked = retry_plan_within(
                connection, self.run_id, self.by, self.retry_id, None, is_published=is_published
            )
        else:
            spec = forks.ForkSpec(self.run_id, self.by, self.retry_id, is_published)
            self._forked = forks.retry(connection, spec)
        return Retried(self._forked.run_id, self._forked.started.status)

    def finish(self, transactions: Transactions) -> None:
        publish(self._forked, self.first_step, transactions)


@dataclass(slots=True)
class Fork(Operation[Started]):
    """Start a run that goes on from before a step of another one. `first_step` as with `Start`."""

    run_id: RunId
    at: int
    by: UserId
    first_step: FirstStep | None = None
    fork_id: RunId = field(default_factory=new_run_id)
    thread_id: ThreadId = field(default_factory=new_thread_id)
    _forked: forks.Forked | None = field(default=None, init=False)

    def act(self, connection: Connection) -> Started:
        spec = forks.ForkSpec(self.run_id, self.by, self.fork_id, self.first_step is not None)
        self._forked = forks.fork(connection, spec, self.at, self.thread_id)
        started = self._forked.started
        return Started(self.fork_id, self.thread_id, started.status, started.phase)

    def finish(self, transactions: Transactions) -> None:
        publish(self._forked, self.first_step, transactions)


def retry(run_id: str, *, by: str | None = None) -> Ask[Retried]:
    """Let a run in `needs_attention` try its step again; or start a run that tries the last step
    of a `failed` one again, in the same thread (docs/replay.md). Which run it is, and where it
    stands.

    A failed run has one such run, whoever asks how often. Nothing that it has done is done again.
    Raises `UnknownRun`, or `Conflict` if there is nothing to try again, or if the outcome of a
    call must be resolved first.
    """
    run, person = run_named(run_id), user_or_default(by)

    def over_http() -> Flow[Retried]:
        refuse_speaker(by)
        return reader(Retried)((yield ask_run(run, "retry")))

    return Ask(lambda desk: desk.perform(Retry(run, person, desk.first_step), run), over_http)


def fork(run_id: str, at: int, *, by: str | None = None) -> Ask[Started]:
    """Start a run that goes on from where the run stood before its step `at`, in a thread of its
    own (docs/replay.md).

    It is of the same agent, user, limits and contract, and makes that step and all after it by
    the code and the model of now: what the run has done since is done again, under other
    idempotency keys. Raises `UnknownRun`; `InvalidInput` for a step that the run has not come
    to; `Conflict` if what it worked with was erased.
    """
    run, person = run_named(run_id), user_or_default(by)

    def over_http() -> Flow[Started]:
        refuse_speaker(by)
        return read_started((yield ask_run(run, "fork", {"at": at})))

    return Ask(lambda desk: desk.perform(Fork(run, at, person, desk.first_step), run), over_http)


def publish(
    forked: forks.Forked | None, first_step: FirstStep | None, transactions: Transactions
) -> None:
    if forked is None or first_step is None or not forked.is_new:
        return
    if forked.started.status is RunStatus.QUEUED:
        first_step.publish(forked.run_id, forked.queue, transactions)


def retry_plan_within(
    connection: Connection,
    run_id: RunId,
    by: UserId,
    retry_id: RunId,
    plan: "JsonValue",
    *,
    is_published: bool,
) -> forks.Forked:
    # Here, because plans bring in what they are checked by.
    from celeriac_storage import plan_retries

    spec = plan_retries.PlanRetrySpec(run_id, by, retry_id, plan, is_published)
    return plan_retries.retry(connection, spec)
