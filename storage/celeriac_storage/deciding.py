"""A person's decision about a proposal: checked, written and acted on in one transaction, or not.

Rows are locked in this order: the run, the reviewer (shared), the proposal, the call, the thread.
Everything that ends a pending proposal locks the run first, so of fifty people who decide at once
one comes first, and the others find it decided.
"""

from dataclasses import dataclass

from sqlalchemy import Connection

from celeriac import reports
from celeriac.approval import Requirement
from celeriac.errors import DecisionRefused, InvalidDecision, NotAllowed, UnknownApproval
from celeriac.ids import ApprovalId, RunId, TenantId
from celeriac.states import Phase, RunStatus
from celeriac_storage import (
    approvals,
    audit_trail,
    editing,
    pauses,
    principals,
    rulings,
    run_events,
)
from celeriac_storage.rulings import Approve, Decision, Edit, Reject
from celeriac_storage.threads import wait_for_turn


def decide(
    connection: Connection, tenant_id: TenantId, approval_id: ApprovalId, decision: Decision
) -> reports.Decided:
    """Decide. Needs a transaction. A run that waits for it goes on, or waits for its thread's turn.

    Raises `UnknownApproval`; `DecisionRefused` if the proposal is not pending, not in time, not the
    one that was shown, or its run has ended; `NotAllowed` if this person may not decide it;
    `InvalidDecision` without a reason or an answer that is asked for; `InvalidArguments` for an
    edit that the tool cannot take. All of them leave the proposal as it is, and the caller records
    them (`record_denial`) in a transaction of its own, since this one is rolled back.
    """
    run = _lock_run(connection, tenant_id, approval_id)
    reviewer = principals.lock(connection, tenant_id, [decision.by])[decision.by]
    proposal = approvals.read(connection, tenant_id, approval_id)
    requirement = Requirement.from_json(proposal.requirement)
    _check_pending(connection, run, proposal, decision)
    objection = reviewer.objection(
        requirement, proposal.tool, proposal.arguments, proposal.requested_by
    )
    if objection is not None:
        raise NotAllowed(
            f"proposal {approval_id} ({proposal.tool}) cannot be decided by {decision.by}: "
            f"{objection}. It is still pending"
        )
    answers = _checked_words(requirement, decision)
    match decision.choice:
        case Approve():
            rulings.write(connection, proposal, decision, reviewer, answers, "approve")
            decided, events = rulings.count(connection, proposal, requirement, decision.by)
        case Reject():
            rulings.write(connection, proposal, decision, reviewer, answers, "reject")
            decided, events = rulings.reject(connection, proposal, requirement, decision)
        case Edit(arguments):
            edited = editing.edited(connection, run.agent, proposal, requirement, arguments)
            rulings.write(
                connection, proposal, decision, reviewer, answers, "edit", edited.arguments
            )
            decided, events = rulings.edit(connection, proposal, edited, decision)
            objection = reviewer.objection(
                edited.requirement, proposal.tool, edited.arguments, proposal.requested_by
            )
            if objection is None and set(edited.requirement.checklist) <= answers.keys():
                # What the editor wrote, the editor approves, as far as that goes.
                version = approvals.read(connection, tenant_id, decided.approval_id)
                rulings.write(connection, version, decision, reviewer, answers, "approve")
                decided, more = rulings.count(connection, version, edited.requirement, decision.by)
                events += more
    run_events.append(connection, run.run_id, events, is_request=True)
    audit_trail.note(
        connection,
        tenant_id,
        decision.by,
        f"approval.{decision.choice.verb}",
        approval_id,
        run_id=run.run_id,
        reason=decision.reason,
        status=decided.status,
        now=decided.approval_id,
        roles=list(reviewer.roles),
        answers=dict(answers),
    )
    if decided.status in ("approved", "rejected"):
        wake(connection, run.run_id, tenant_id, run.thread_id)
    return decided


def record_denial(
    connection: Connection,
    tenant_id: TenantId,
    approval_id: ApprovalId,
    decision: Decision,
    why: Exception,
) -> None:
    """Record a decision that was refused, and changed nothing."""
    audit_trail.note(
        connection,
        tenant_id,
        decision.by,
        f"approval.{decision.choice.verb}",
        approval_id,
        is_allowed=False,
        error=type(why).__name__,
        message=str(why),
        reason=decision.reason,
    )


def wake(connection: Connection, run_id: RunId, tenant_id: TenantId, thread_id: str) -> None:
    """Queue the run if it is paused for a decision. The transaction has locked it."""
    woken = pauses.wake(connection, Phase.WAITING_APPROVAL, "%(run_id)s", {"run_id": run_id})
    if woken:
        # While it waited for a person, it let the next run of its thread go.
        wait_for_turn(connection, run_id, tenant_id, thread_id)


@dataclass(frozen=True, slots=True)
class _Run:
    run_id: RunId
    status: RunStatus
    is_cancel_requested: bool
    thread_id: str
    agent: str


def _lock_run(connection: Connection, tenant_id: TenantId, approval_id: ApprovalId) -> _Run:
    row = connection.exec_driver_sql(
        """
        SELECT run_id, status, cancel_requested_at IS NOT NULL, thread_id, agent
        FROM celeriac.runs AS run
        WHERE run_id = (SELECT run_id FROM celeriac.approvals
            WHERE approval_id = %s AND tenant_id = %s)
        FOR UPDATE
        """,
        (approval_id, tenant_id),
    ).fetchone()
    if row is None:
        raise UnknownApproval(
            f"there is no proposal {approval_id}; `celeriac approvals` lists those that wait"
        )
    return _Run(row[0], RunStatus(row[1]), row[2], row[3], row[4])


def _check_pending(
    connection: Connection, run: _Run, proposal: reports.Approval, decision: Decision
) -> None:
    """Raise `DecisionRefused` unless this person can still decide this very proposal."""
    is_late, is_shown, has_decided = connection.exec_driver_sql(
        """
        SELECT coalesce(expires_at <= clock_timestamp(), false), surfaced_at IS NOT NULL, EXISTS (
            SELECT FROM celeriac.approval_decisions AS decision
            WHERE decision.approval_id = approval.approval_id AND reviewer = %s)
        FROM celeriac.approvals AS approval WHERE approval_id = %s
        """,
        (decision.by, proposal.approval_id),
    ).one()
    called = f"proposal {proposal.approval_id} ({proposal.tool}, run {run.run_id})"
    why: str | None = None
    if proposal.status != "pending":
        why = f"it is {proposal.status} already"
    elif run.status.is_terminal:
        why = f"its run is {run.status}"
    elif run.is_cancel_requested:
        why = "its run is being cancelled"
    elif is_late:
        why = f"it expired at {proposal.expires_at}"
    elif decision.hash is not None and decision.hash != proposal.arguments_hash:
        why = (
            f"its hash is {proposal.arguments_hash}, not {decision.hash}: this is not what you "
            "were shown; look at it again"
        )
    elif not is_shown:
        why = "it was never shown to anybody; `celeriac approvals` shows it"
    elif has_decided:
        why = f"{decision.by} has decided it already; it needs somebody else"
    if why is not None:
        raise DecisionRefused(f"{called} cannot be decided: {why}. Nothing was changed")


def _checked_words(requirement: Requirement, decision: Decision) -> dict[str, str]:
    """The answers. Raises `InvalidDecision` for one that is missing, and for a missing reason."""
    answers = {question: text.strip() for question, text in decision.answers.items()}
    if isinstance(decision.choice, Reject):
        if not decision.reason.strip():
            raise InvalidDecision("a rejection needs a reason: the model is told it")
        return answers
    unanswered = [each for each in requirement.checklist if not answers.get(each)]
    if unanswered:
        raise InvalidDecision(
            f"the checklist is not answered: {'; '.join(unanswered)}. Answer each question"
        )
    return answers
