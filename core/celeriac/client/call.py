"""What clients ask about calls that another process executes, or whose outcome is unknown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from celeriac.client.ask import Ask
from celeriac.client.named import call_named, run_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import LONGEST_PAGE, Flow, get
from celeriac.client.run import ask_run, stands
from celeriac.errors import CeleriacError, Conflict, InvalidReceipt, UnknownCall
from celeriac.ids import CallId, RunId, UserId
from celeriac.reports import RequestedCall
from celeriac.schemas import strict_json
from celeriac.states import RunStatus
from celeriac.testpoints import reach
from celeriac.workspace.receipts import Receipt
from celeriac_storage import resolving, submitting
from celeriac_storage.resolving import Resolution, TookEffect
from celeriac_storage.submitting import Failed, Result, Results
from celeriac_storage.tenancy import Transactions

if TYPE_CHECKING:
    from celeriac.client.database import DatabaseDesk
    from celeriac.codec import JsonValue


@dataclass(frozen=True, slots=True)
class Resolve(Operation[RunStatus]):
    """Say what came of a call whose outcome is unknown. Raises `UnknownRun`, `UnknownCall` or
    `Conflict`."""

    run_id: RunId
    call_id: CallId
    resolution: Resolution
    by: UserId

    def act(self, connection: Connection) -> RunStatus:
        return resolving.resolve(connection, self.run_id, self.call_id, self.resolution, self.by)


@dataclass(frozen=True, slots=True)
class Submit(Operation[RunStatus]):
    """Bring in what another process's calls came to, all of them or none. A refusal for what they
    say is recorded.
    """

    run_id: RunId
    results: Results
    by: UserId

    def act(self, connection: Connection) -> RunStatus:
        status = submitting.submit(connection, self.run_id, self.results, self.by)
        reach("submit.before_commit")
        return status

    def finish(self, transactions: Transactions) -> None:
        reach("submit.after_commit")

    def is_noted(self, refused: CeleriacError) -> bool:
        return isinstance(refused, UnknownCall | InvalidReceipt | Conflict)

    def note_refusal(self, connection: Connection, refused: CeleriacError) -> None:
        submitting.record_refusal(connection, self.run_id, self.results, self.by, refused)


def requested_calls(run_id: str | None = None, *, limit: int = 100) -> Ask[list[RequestedCall]]:
    """The calls that another process is to execute, of that run or of all, the oldest first.

    They stay in the list until their results are submitted: whoever executes them gives `key`
    to the target, or remembers it, and so does none of them twice.
    """
    run = None if run_id is None else run_named(run_id)

    def in_database(desk: "DatabaseDesk") -> list[RequestedCall]:
        return desk.read(
            lambda connection: submitting.requested_calls(
                connection, run, limit, tenant_id=desk.tenant_id
            )
        )

    def over_http() -> Flow[list[RequestedCall]]:
        if run is None:
            listed = yield get("/v1/calls", limit=min(limit, LONGEST_PAGE))
        else:
            listed = yield get(f"/v1/runs/{run}/calls")
        return [reader(RequestedCall)(each) for each in listed["calls"]][:limit]

    return Ask(in_database, over_http)


def submit(run_id: str, results: Mapping[str, Result], *, by: str | None = None) -> Ask[RunStatus]:
    """Tell the results of calls that another process has executed, by call id, and return where
    the run stands now. All of them are recorded, or none is.

    A result is any JSON, or `Failed(message)`; of a call that changes files, a `Receipt`
    (`celeriac.workspace.receipts`) that says either. With the last one that it waits for, the
    run goes on; if the files were not as the run had left them, it goes to a person. To submit
    the same again is no error; what is there is never replaced. Raises `UnknownRun`,
    `UnknownCall`, `InvalidReceipt`, or `Conflict` for another result than the one that is
    there, a call that is not requested, and a run that has ended; the refusal is recorded.
    """
    run, person = run_named(run_id), user_or_default(by)
    told = {call_named(call_id): result for call_id, result in results.items()}

    def over_http() -> Flow[RunStatus]:
        listed: list[JsonValue] = [{"call_id": call, **_told(each)} for call, each in told.items()]
        return (yield from stands(ask_run(run, "results", {"results": listed}), by))

    return Ask(lambda desk: desk.perform(Submit(run, told, person), run), over_http)


def _told(result: Result) -> "dict[str, JsonValue]":
    match result:
        case Failed(message):
            return {"error": message}
        case Receipt(given):
            return {"receipt": strict_json(given)}
        case _:
            return {"result": strict_json(result)}


def resolve(
    run_id: str, call_id: str, resolution: Resolution, *, by: str | None = None
) -> Ask[RunStatus]:
    """Say what came of a call whose outcome is `unknown`, and return where the run stands now.

    `TookEffect(result)`: the model is told the result. `NotDone()`: the call changed nothing
    and is made again with the same idempotency key. The run goes on; one that was cancelled
    meanwhile stays so. Raises `UnknownRun`, `UnknownCall` or `Conflict`; that also for
    `NotDone()` if the worker that made the call has told that it took effect; and `InvalidInput`
    for a result that does not fit what the tool's function says that it returns.
    """
    run, call, person = run_named(run_id), call_named(call_id), user_or_default(by)

    def over_http() -> Flow[RunStatus]:
        came: dict[str, JsonValue] = (
            {"committed": strict_json(resolution.result)}
            if isinstance(resolution, TookEffect)
            else {"not_done": True}
        )
        return (yield from stands(ask_run(run, "resolve", {"call_id": call, **came}), by))

    return Ask(lambda desk: desk.perform(Resolve(run, call, resolution, person), run), over_http)
