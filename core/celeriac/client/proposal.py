"""What clients ask about proposals, and what people say about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from celeriac.client import people
from celeriac.client.ask import Ask
from celeriac.client.named import proposal_named, run_named, user_or_default
from celeriac.client.operation import Operation
from celeriac.client.over_http.answers import reader
from celeriac.client.over_http.request import Flow, get, pages, post, refuse_speaker
from celeriac.codec import loads_strict
from celeriac.errors import (
    CeleriacError,
    DatabaseUnavailable,
    InvalidArguments,
    InvalidInput,
    UnknownApproval,
)
from celeriac.ids import ApprovalId, TenantId
from celeriac.reports import Approval, Decided
from celeriac.schemas import strict_json
from celeriac_storage import deciding
from celeriac_storage.rulings import Approve, Decision, Edit, Reject

if TYPE_CHECKING:
    from celeriac.client.database import DatabaseDesk
    from celeriac.codec import JsonValue


@dataclass(frozen=True, slots=True)
class Decide(Operation[Decided]):
    """Approve, edit or reject a proposal. A refusal is recorded, if there is such a proposal."""

    tenant_id: TenantId
    approval_id: ApprovalId
    decision: Decision

    def act(self, connection: Connection) -> Decided:
        return deciding.decide(connection, self.tenant_id, self.approval_id, self.decision)

    def is_noted(self, refused: CeleriacError) -> bool:
        return not isinstance(refused, DatabaseUnavailable | UnknownApproval)

    def note_refusal(self, connection: Connection, refused: CeleriacError) -> None:
        deciding.record_denial(connection, self.tenant_id, self.approval_id, self.decision, refused)


def list_approvals(
    *,
    status: str | None = "pending",
    run_id: str | None = None,
    limit: int = 100,
    by: str | None = None,
) -> Ask[list[Approval]]:
    """The proposals that wait for a person, or those of another status (None: of any), the
    oldest first. That `by` was shown the pending ones is recorded: nobody can decide what
    nobody was shown.
    """
    run, person = None if run_id is None else run_named(run_id), user_or_default(by)

    def in_database(desk: "DatabaseDesk") -> list[Approval]:
        return people.show_approvals(
            desk.ready(), desk.tenant_id, status=status, run_id=run, limit=limit, to=person
        )

    def over_http() -> Flow[list[Approval]]:
        refuse_speaker(by)
        people.check_status(status)
        asked = {"status": "any" if status is None else status, "run_id": run}
        return (yield from pages("/v1/approvals", "approvals", reader(Approval), limit, asked))

    return Ask(in_database, over_http)


def get_approval(approval_id: str, *, by: str | None = None) -> Ask[Approval]:
    """One proposal, which `by` is shown. Raises `UnknownApproval`."""
    proposal, person = proposal_named(approval_id), user_or_default(by)

    def over_http() -> Flow[Approval]:
        refuse_speaker(by)
        return reader(Approval)((yield get(f"/v1/approvals/{proposal}")))

    return Ask(
        lambda desk: people.show_approval(desk.ready(), desk.tenant_id, proposal, person), over_http
    )


def approve(
    approval_id: str,
    *,
    by: str | None = None,
    hash: str | None = None,  # noqa: A002 - the word of the interface
    reason: str = "",
    answers: Mapping[str, str] | None = None,
) -> Ask[Decided]:
    """Approve exactly this version of the call: the id names it, and so does the
    `arguments_hash` that was shown, if given. `answers` are those to the checklist's questions.

    With the last approval that it needs, the run goes on; before the call everything is checked
    once more. Raises `UnknownApproval`, `DecisionRefused`, `NotAllowed` or `InvalidDecision`,
    after recording that the decision was refused; the proposal is then as before.
    """
    return _decide(
        approval_id, by, Decision(Approve(), user_or_default(by), hash, reason, answers or {})
    )


def edit(
    approval_id: str,
    arguments: str | Mapping[str, object],
    *,
    by: str | None = None,
    hash: str | None = None,  # noqa: A002 - the word of the interface
    reason: str = "",
    answers: Mapping[str, str] | None = None,
) -> Ask[Decided]:
    """Propose other arguments, all of them, as an object or its JSON text, and approve them, if
    the approval of `by` is enough for them; else the new version waits for others.

    Raises as `approve`, and `InvalidArguments` for what the tool or its policy does not take.
    """
    choice = Edit(arguments)
    return _decide(
        approval_id, by, Decision(choice, user_or_default(by), hash, reason, answers or {})
    )


def reject(
    approval_id: str,
    reason: str,
    *,
    by: str | None = None,
    hash: str | None = None,  # noqa: A002 - the word of the interface
) -> Ask[Decided]:
    """Reject the call. It is never executed; the model is told the reason, or the run ends, as
    the tool's policy says. Raises as `approve`."""
    return _decide(approval_id, by, Decision(Reject(), user_or_default(by), hash, reason))


def _decide(approval_id: str, by: str | None, decision: Decision) -> Ask[Decided]:
    proposal = proposal_named(approval_id)
    return Ask(
        lambda desk: desk.perform(Decide(desk.tenant_id, proposal, decision)),
        lambda: _decide_over_http(proposal, by, decision),
    )


def _decide_over_http(proposal: ApprovalId, by: str | None, decision: Decision) -> Flow[Decided]:
    refuse_speaker(by)
    body: dict[str, JsonValue] = {
        "decision": decision.choice.verb,
        "reason": decision.reason,
        "answers": dict(decision.answers),
    }
    if isinstance(decision.choice, Edit):
        body["arguments"] = _object(decision.choice.arguments)
    shown = decision.hash
    if shown is None:  # the id names the same for good
        shown = (yield get(f"/v1/approvals/{proposal}"))["arguments_hash"]
    decided = yield post(
        f"/v1/approvals/{proposal}/decision",
        {**body, "arguments_hash": shown},
        if_lost=f"It is not known whether proposal {proposal} was decided: look at it",
    )
    return reader(Decided)(decided)


def _object(arguments: str | Mapping[str, object]) -> "JsonValue":
    """As it may be sent. Raises `InvalidArguments`."""
    try:
        if isinstance(arguments, str):
            read = loads_strict(arguments)
        else:
            read = strict_json(dict(arguments))
    except InvalidInput as error:
        raise InvalidArguments(f"the arguments cannot be read: {error}") from error
    if not isinstance(read, dict):
        raise InvalidArguments("the arguments must be an object, by the names of the parameters")
    return read
