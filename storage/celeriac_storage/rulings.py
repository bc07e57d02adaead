"""What people say about a proposal, and what becomes of it and of its call by that.

The caller has checked it and holds the run (`deciding`). What an update does not find as it was
checked is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from celeriac import reports
from celeriac.approval import Requirement
from celeriac.codec import JsonValue, dumps
from celeriac.errors import DecisionRefused
from celeriac.ids import UserId
from celeriac.principal import Principal
from celeriac.states import EffectState
from celeriac_storage import approvals, editing
from celeriac_storage.editing import Edited

Events = list[tuple[str, dict[str, JsonValue]]]


@dataclass(frozen=True, slots=True)
class Approve:
    """The call is made as it is proposed."""

    verb = "approve"


@dataclass(frozen=True, slots=True)
class Edit:
    """The call is proposed with these arguments instead, all of them, and approved by whoever says
    so, if that is enough for them."""

    arguments: str | Mapping[str, object]  # an object, or its JSON text
    verb = "edit"


@dataclass(frozen=True, slots=True)
class Reject:
    """The call is never made. The model is told why, or the run ends, as the tool says."""

    verb = "reject"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person says about a proposal."""

    choice: Approve | Edit | Reject
    by: UserId
    hash: str | None = None  # `arguments_hash` as it was shown; the proposal's id names it as well
    reason: str = ""  # a rejection needs one
    answers: Mapping[str, str] = field(default_factory=dict)  # to the questions of the checklist


def write(
    connection: Connection,
    proposal: reports.Approval,
    decision: Decision,
    reviewer: Principal,
    answers: Mapping[str, str],
    verb: str,
    edited_arguments: JsonValue = None,
) -> None:
    """Write who said what about the proposal, knowing what, with which rights and how fast."""
    connection.exec_driver_sql(
        """
        INSERT INTO celeriac.approval_decisions (approval_id, reviewer, decision,
            arguments_hash, rendering_hash, roles, principal_version, policy_version, reason,
            answers, edited_arguments, shown_at, seconds_to_decision)
        SELECT approval_id, %(by)s, %(verb)s, arguments_hash, decode(%(rendering)s, 'hex'),
            %(roles)s, %(principal_version)s, policy_version, %(reason)s, %(answers)s::jsonb,
            %(edited)s::jsonb, shown_at,
            extract(epoch FROM clock_timestamp() - shown_at)::double precision
        FROM celeriac.approvals, LATERAL (
            SELECT coalesce((
                SELECT min(at) FROM celeriac.audit
                WHERE object = approval_id AND action = 'approval.shown' AND actor = %(by)s
            ), surfaced_at) AS shown_at
        ) AS shown
        WHERE approval_id = %(approval_id)s
        """,
        {
            "approval_id": proposal.approval_id,
            "by": decision.by,
            "verb": verb,
            "rendering": approvals.rendering_hash(proposal),
            "roles": list(reviewer.roles),
            "principal_version": reviewer.version,
            "reason": decision.reason.strip(),
            "answers": dumps(dict(answers)),
            "edited": None if edited_arguments is None else dumps(edited_arguments),
        },
    )


def count(
    connection: Connection, proposal: reports.Approval, requirement: Requirement, by: UserId
) -> tuple[reports.Decided, Events]:
    """Count the approvals of the proposal; with the last that it needs, the call is approved."""
    found = connection.exec_driver_sql(
        "SELECT count(*) FROM celeriac.approval_decisions"
        " WHERE approval_id = %s AND decision = 'approve'",
        (proposal.approval_id,),
    ).scalar_one()
    is_enough = found >= requirement.quorum
    if is_enough:
        _end(connection, proposal, "approved", by)
        _move(connection, proposal, EffectState.APPROVED)
    status = "approved" if is_enough else "pending"
    data: dict[str, JsonValue] = {
        **_named(proposal),
        "decision": "approve",
        "by": by,
        "status": status,
        "approvals": found,
        "quorum": requirement.quorum,
    }
    type_ = "approval.decided" if is_enough else "approval.counted"
    return _decided(proposal, status, found, requirement.quorum), [(type_, data)]


def reject(
    connection: Connection,
    proposal: reports.Approval,
    requirement: Requirement,
    decision: Decision,
) -> tuple[reports.Decided, Events]:
    reason = decision.reason.strip()
    _end(connection, proposal, "rejected", decision.by)
    _move(
        connection,
        proposal,
        EffectState.REJECTED,
        {
            "kind": "rejected",
            "message": f"{decision.by} rejected this call of {proposal.tool}, and it was not "
            f"executed: {reason}",
        },
    )
    data: dict[str, JsonValue] = {
        **_named(proposal),
        "decision": "reject",
        "by": decision.by,
        "status": "rejected",
        "reason": reason,
    }
    decided = _decided(proposal, "rejected", 0, requirement.quorum)
    return decided, [("approval.decided", data)]


def edit(
    connection: Connection, proposal: reports.Approval, edited: Edited, decision: Decision
) -> tuple[reports.Decided, Events]:
    """Replace the proposal by the next version of it, which nobody has approved yet."""
    _end(connection, proposal, "superseded", decision.by)
    editing.replace_arguments(connection, proposal, edited, decision.by)
    named: dict[str, JsonValue] = {
        "approval_id": edited.approval_id,
        "call_id": proposal.call_id,
        "tool": proposal.tool,
        "version": proposal.version + 1,
    }
    decided = reports.Decided(
        edited.approval_id,
        proposal.run_id,
        proposal.call_id,
        proposal.version + 1,
        "pending",
        0,
        edited.requirement.quorum,
    )
    return decided, [
        (
            "approval.decided",
            {**_named(proposal), "decision": "edit", "by": decision.by, "status": "superseded"},
        ),
        ("proposal.edited", {**named, "by": decision.by, "edited_from": proposal.approval_id}),
        ("approval.requested", named),
    ]


def _end(connection: Connection, proposal: reports.Approval, status: str, by: UserId) -> None:
    row = connection.exec_driver_sql(
        # One reading of the clock: with two, the last moment could lie between them.
        "UPDATE celeriac.approvals SET status = %s, decided_at = moment, decided_by = %s"
        " FROM (SELECT clock_timestamp() AS moment) AS clock"
        " WHERE approval_id = %s AND status = 'pending'"
        " AND (expires_at > moment) IS NOT FALSE RETURNING approval_id",
        (status, by, proposal.approval_id),
    ).fetchone()
    if row is None:  # its last moment passed while we checked
        raise DecisionRefused(
            f"proposal {proposal.approval_id} ({proposal.tool}, run {proposal.run_id}) cannot be "
            f"decided: it expired at {proposal.expires_at}. Nothing was changed"
        )


def _move(
    connection: Connection,
    proposal: reports.Approval,
    state: EffectState,
    error: dict[str, JsonValue] | None = None,
) -> None:
    """Move the call from `proposed` to where the decision leads; it must be this very version."""
    row: Any = connection.exec_driver_sql(
        """
        UPDATE celeriac.effects SET state = %(state)s, error = %(error)s::jsonb,
            settled_at = CASE WHEN %(is_settled)s THEN clock_timestamp() END
        WHERE run_id = %(run_id)s AND call_id = %(call_id)s AND state = 'proposed'
            AND version = %(version)s AND fingerprint = decode(%(hash)s, 'hex')
        RETURNING call_id
        """,
        {
            "state": state.value,
            "error": None if error is None else dumps(error),
            "is_settled": state.is_settled,
            "run_id": proposal.run_id,
            "call_id": proposal.call_id,
            "version": proposal.version,
            "hash": proposal.arguments_hash,
        },
    ).fetchone()
    if row is None:
        raise DecisionRefused(
            f"proposal {proposal.approval_id} ({proposal.tool}, run {proposal.run_id}) cannot be "
            "decided: the call is not the one that was proposed any more. Nothing was changed; "
            f"`celeriac audit {proposal.run_id}` says what is wrong"
        )


def _named(proposal: reports.Approval) -> dict[str, JsonValue]:
    return {
        "approval_id": proposal.approval_id,
        "call_id": proposal.call_id,
        "tool": proposal.tool,
        "version": proposal.version,
    }


def _decided(
    proposal: reports.Approval, status: str, approvals_: int, quorum: int
) -> reports.Decided:
    return reports.Decided(
        proposal.approval_id,
        proposal.run_id,
        proposal.call_id,
        proposal.version,
        status,
        approvals_,
        quorum,
    )
