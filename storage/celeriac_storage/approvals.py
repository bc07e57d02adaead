"""Proposals: how they are written with the step that makes them, and shown to people.

What a reviewer is shown is one row that never changes, so its id names it for good. Decisions are
in `deciding`, the check before the call in `consuming`, what nobody decides in time in `expiring`.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from celeriac import reports
from celeriac.approval import Requirement
from celeriac.codec import JsonValue, dumps
from celeriac.errors import UnknownApproval
from celeriac.ids import ApprovalId, CallId, RunId, TenantId, UserId
from celeriac_storage import audit_trail, run_events


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a step proposes. Tool and arguments are those of the call itself."""

    approval_id: ApprovalId
    call_id: CallId
    requirement: Requirement
    intent: str
    data_lineage: Sequence[JsonValue]
    permissions_touched: Sequence[str]
    blast_radius: str
    rollback_plan: dict[str, JsonValue]
    policy_version: str
    agent_hash: str

    def to_row(self) -> dict[str, JsonValue]:
        return {
            "approval_id": self.approval_id,
            "call_id": self.call_id,
            "requirement": self.requirement.to_json(),
            "intent": self.intent,
            "data_lineage": list(self.data_lineage),
            "permissions_touched": list(self.permissions_touched),
            "blast_radius": self.blast_radius,
            "rollback_plan": self.rollback_plan,
            "policy_version": self.policy_version,
            "agent_hash": self.agent_hash,
        }


INSERT = """
    INSERT INTO celeriac.approvals (approval_id, tenant_id, run_id, call_id, version, agent_hash,
        tool, tool_version, arguments, arguments_hash, intent, reason, data_lineage,
        permissions_touched, blast_radius, rollback_plan, idempotency_key, requirement, quorum,
        policy_version, requested_by, status, expires_at)
    SELECT entry.approval_id, %(tenant_id)s::text, effect.run_id, effect.call_id, effect.version,
        entry.agent_hash, effect.tool, effect.tool_version, effect.arguments, effect.fingerprint,
        entry.intent, entry.requirement ->> 'reason', entry.data_lineage,
        entry.permissions_touched, entry.blast_radius, entry.rollback_plan,
        concat_ws(':', %(tenant_id)s::text, effect.run_id, effect.call_id), entry.requirement,
        (entry.requirement ->> 'quorum')::smallint, entry.policy_version, %(user_id)s::text,
        CASE WHEN %(is_terminal)s THEN 'cancelled' ELSE 'pending' END, clock_timestamp()
            + make_interval(secs => (entry.requirement ->> 'expires_seconds')::double precision)
    FROM {effects} AS effect JOIN jsonb_to_recordset(%(proposed)s::jsonb) AS entry (
        approval_id text, call_id text, requirement jsonb, intent text, data_lineage jsonb,
        permissions_touched jsonb, blast_radius text, rollback_plan jsonb, policy_version text,
        agent_hash text) USING (call_id)
"""
"""Writes `proposed`, a list of `Proposal.to_row()`, for calls in `effects`; part of a commit.

If the run ends with that commit, cancelled meanwhile, then so does the proposal.
"""


_SELECT = """
SELECT approval_id, run_id, call_id, tool, arguments, encode(arguments_hash, 'hex'), version,
    intent, data_lineage, permissions_touched, blast_radius, rollback_plan, idempotency_key, status,
    expires_at, reason, requirement, ARRAY(
        SELECT reviewer FROM celeriac.approval_decisions AS decision
        WHERE decision.approval_id = approval.approval_id AND decision = 'approve'
        ORDER BY decided_at
    ), requested_by, created_at, edited_from
FROM celeriac.approvals AS approval
"""


def list_approvals(
    connection: Connection,
    tenant_id: TenantId,
    *,
    status: str | None = None,
    run_id: RunId | None = None,
    after: tuple[datetime, ApprovalId] | None = None,
    limit: int = 100,
) -> list[reports.Approval]:
    """Proposals, the oldest first: of that status, of that run, and made after the one `after`,
    given by its time and id."""
    rows = connection.exec_driver_sql(
        _SELECT
        + """
        WHERE tenant_id = %(tenant_id)s AND status = coalesce(%(status)s::text, status)
            AND run_id = coalesce(%(run_id)s::text, run_id)
            AND (%(after)s::timestamptz IS NULL
                OR (created_at, approval_id) > (%(after)s::timestamptz, %(after_id)s::text))
        ORDER BY created_at, approval_id LIMIT %(limit)s
        """,
        {
            "tenant_id": tenant_id,
            "status": status,
            "run_id": run_id,
            "after": None if after is None else after[0],
            "after_id": None if after is None else after[1],
            "limit": limit,
        },
    )
    return [_report(row) for row in rows]


def of_run(connection: Connection, run_id: RunId) -> list[reports.Approval]:
    """The run's proposals in the order in which they were made."""
    rows = connection.exec_driver_sql(
        _SELECT + "WHERE run_id = %s ORDER BY created_at, approval_id", (run_id,)
    )
    return [_report(row) for row in rows]


def read(connection: Connection, tenant_id: TenantId, approval_id: ApprovalId) -> reports.Approval:
    """Raises `UnknownApproval`, also for one of another tenant."""
    row = connection.exec_driver_sql(
        _SELECT + "WHERE tenant_id = %s AND approval_id = %s", (tenant_id, approval_id)
    ).fetchone()
    if row is None:
        raise UnknownApproval(
            f"there is no proposal {approval_id}; `celeriac approvals` lists those that wait"
        )
    return _report(row)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What one person said about a proposal."""

    reviewer: UserId
    decision: str  # approve, edit or reject
    reason: str
    answers: dict[str, str]
    roles: Sequence[str]  # that the person had
    decided_at: datetime
    seconds_to_decision: float


@dataclass(frozen=True, slots=True)
class Sight:
    """That one person was shown a proposal, and as what."""

    to: UserId
    at: datetime
    rendering_hash: str


def edited_version(connection: Connection, approval_id: ApprovalId) -> ApprovalId | None:
    """The next version of it, which an edit has made."""
    row = connection.exec_driver_sql(
        "SELECT approval_id FROM celeriac.approvals WHERE edited_from = %s"
        " AND run_id = (SELECT run_id FROM celeriac.approvals WHERE approval_id = %s)",
        (approval_id, approval_id),
    ).fetchone()
    return None if row is None else ApprovalId(row[0])


def rulings_about(connection: Connection, approval_id: ApprovalId) -> list[Ruling]:
    """What people have said about it, in that order."""
    rows = connection.exec_driver_sql(
        "SELECT reviewer, decision, reason, answers, roles, decided_at, seconds_to_decision"
        " FROM celeriac.approval_decisions WHERE approval_id = %s ORDER BY decided_at",
        (approval_id,),
    )
    return [Ruling(*row) for row in rows]


def sights_of(connection: Connection, approval_id: ApprovalId) -> list[Sight]:
    """Who was shown it while it was pending, each the first time."""
    rows = connection.exec_driver_sql(
        "SELECT actor, at, detail ->> 'rendering_hash' FROM celeriac.audit"
        " WHERE object = %s AND action = 'approval.shown' ORDER BY audit_id",
        (approval_id,),
    )
    return [Sight(*row) for row in rows]


def not_yet_shown(
    connection: Connection, shown: Sequence[reports.Approval], to: UserId
) -> list[reports.Approval]:
    """Those of the pending proposals that this person was never shown."""
    rows = connection.exec_driver_sql(
        "SELECT object FROM celeriac.audit"
        " WHERE object = ANY (%s) AND action = 'approval.shown' AND actor = %s",
        ([each.approval_id for each in shown], to),
    )
    known = {row[0] for row in rows}
    return [each for each in shown if each.status == "pending" and each.approval_id not in known]


def surface(
    connection: Connection, tenant_id: TenantId, shown: reports.Approval, to: UserId
) -> None:
    """Record that this person is shown this proposal. Needs a transaction.

    The first time for anybody is an event of the run. Nobody can decide what nobody was shown.
    """
    connection.exec_driver_sql(
        "SELECT FROM celeriac.runs WHERE run_id = %s FOR UPDATE", (shown.run_id,)
    )
    first = connection.exec_driver_sql(
        "UPDATE celeriac.approvals SET surfaced_at = clock_timestamp()"
        " WHERE approval_id = %s AND status = 'pending' AND surfaced_at IS NULL RETURNING run_id",
        (shown.approval_id,),
    ).fetchone()
    if first is not None:
        data: dict[str, JsonValue] = {"approval_id": shown.approval_id, "to": to}
        run_events.append(connection, shown.run_id, [("approval.surfaced", data)], is_request=False)
    if not not_yet_shown(connection, [shown], to):
        return  # to the same person at the same time, from elsewhere
    audit_trail.note(
        connection,
        tenant_id,
        to,
        "approval.shown",
        shown.approval_id,
        run_id=shown.run_id,
        rendering_hash=rendering_hash(shown),
    )


def cancel_pending(connection: Connection, run_id: RunId) -> None:
    """End what waits for people in a run that ends in this transaction, which has locked it.

    The calls stay `proposed`: nobody has decided about them, and nobody will.
    """
    connection.exec_driver_sql(
        "UPDATE celeriac.approvals SET status = 'cancelled'"
        " WHERE run_id = %s AND status = 'pending'",
        (run_id,),
    )


def rendering_hash(shown: reports.Approval) -> str:
    """sha256, 64 hex digits, of all that a reviewer is shown and that never changes."""
    rendering = reports.to_json(replace(shown, status="", approved_by=()))
    return hashlib.sha256(dumps(rendering).encode()).hexdigest()


def _report(row: Any) -> reports.Approval:
    return reports.Approval(*row)
