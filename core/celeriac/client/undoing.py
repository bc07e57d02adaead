"""What clients ask for to have undone what a run did."""

from dataclasses import dataclass, field

from sqlalchemy import Connection

from celeriac.client.ask import Ask
from celeriac.client.first_step import FirstStep
from celeriac.client.named import run_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.request import Flow, refuse_speaker
from celeriac.client.run import ask_run, read_started
from celeriac.errors import CeleriacError, NotAllowed
from celeriac.ids import RunId, ThreadId, UserId, new_run_id, new_thread_id
from celeriac.reports import Started
from celeriac.states import RunStatus
from celeriac_storage import rollbacks
from celeriac_storage.tenancy import Transactions


@dataclass(slots=True)
class RollBack(Operation[Started]):
    """Start the run that undoes another one. `first_step` as with `Start`."""

    run_id: RunId
    from_step: int
    by: UserId
    first_step: FirstStep | None = None
    rollback_id: RunId = field(default_factory=new_run_id)
    thread_id: ThreadId = field(default_factory=new_thread_id)
    _status: RunStatus | None = field(default=None, init=False)
    _queue: str = field(default="", init=False)

    def act(self, connection: Connection) -> Started:
        started, self._queue = rollbacks.request(connection, self._spec())
        self._status = started.status
        return Started(self.rollback_id, self.thread_id, started.status, started.phase)

    def is_noted(self, refused: CeleriacError) -> bool:
        return isinstance(refused, NotAllowed)

    def note_refusal(self, connection: Connection, refused: CeleriacError) -> None:
        assert isinstance(refused, NotAllowed)
        rollbacks.record_denial(connection, self._spec(), refused)

    def finish(self, transactions: Transactions) -> None:
        if self.first_step is not None and self._status is RunStatus.QUEUED:
            self.first_step.publish(self.rollback_id, self._queue, transactions)

    def _spec(self) -> rollbacks.RollbackSpec:
        from celeriac_storage.admitting import word

        return rollbacks.RollbackSpec(
            self.run_id,
            self.from_step,
            self.by,
            self.rollback_id,
            self.thread_id,
            word(f"Roll back run {self.run_id} from step {self.from_step} on."),
            self.first_step is not None,
        )


def rollback(run_id: str, from_step: int = 0, *, by: str | None = None) -> Ask[Started]:
    """Undo what the run did, from that step on: start a run that takes its calls back, the
    latest first, each as its tool declares (`celeriac.rollback`).

    The result of that run is `{"undone": [...], "compensated": [...], "not_undone": [...]}`,
    each a list of `{"call_id", "tool"}`, the last with a `"why"`; and, if something could be
    undone only in part, `"partly_undone"` with the undo's own `"report"`. It needs a person's
    attention where only people can undo a call, and where an undo failed: `resolve` and `retry`
    let it go on. What is undone already is left alone.

    Raises `UnknownRun`; `InvalidInput` for a step that the run has not; `NotAllowed` if a call
    needed a decision that `by` may not take; `Conflict` while the run goes on, while another
    rollback of it does, while the outcome of a call is unknown, or if nothing is left to undo.
    """
    run, person = run_named(run_id), user_or_default(by)

    def over_http() -> Flow[Started]:
        refuse_speaker(by)
        return read_started((yield ask_run(run, "rollback", {"from_step": from_step})))

    return Ask(
        lambda desk: desk.perform(RollBack(run, from_step, person, desk.first_step), run), over_http
    )
