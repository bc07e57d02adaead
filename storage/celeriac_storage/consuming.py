"""The last look at a decision, in the transaction that starts the call: what is executed is what
was approved, by people who may still approve it, and it is executed once.

Rows are locked in this order: the run (if the caller locks it), the deciders (shared), the
proposal. A revocation that commits before is seen; one that comes later waits, and is too late.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from celeriac.approval import Requirement
from celeriac.codec import JsonValue, dumps
from celeriac.ids import ApprovalId
from celeriac.states import EffectKind, EffectState
from celeriac_storage import audit_trail, principals, run_events
from celeriac_storage.claims import Claim, refusal
from celeriac_storage.effects import Effect


class ApprovalLost(Exception):
    """The decision does not allow this call any more. Nothing was executed or consumed.

    `is_damage`: it is not that somebody changed his mind or time has passed, but what is stored
    contradicts itself, and no new proposal would help.
    """

    def __init__(self, why: str, *, is_damage: bool) -> None:
        super().__init__(why)
        self.why = why
        self.is_damage = is_damage


@dataclass(frozen=True, slots=True)
class Consumed:
    """The decision that a call is made on."""

    approval_id: ApprovalId
    version: int
    arguments_hash: str
    approved_by: tuple[str, ...]


_STANDING = """
SELECT approval.approval_id, approval.version, encode(approval.arguments_hash, 'hex'),
    approval.requirement, approval.requested_by, approval.arguments, approval.tool,
    status = 'approved' AS is_approved,
    (expires_at > clock_timestamp()) IS NOT FALSE OR consumed_at IS NOT NULL AS is_in_time,
    consumed_at IS NOT NULL AS is_consumed,
    approval.arguments = %(arguments)s::jsonb AND approval.arguments = effect.arguments
        AND approval.requirement = effect.requirement
        AND approval.arguments_hash = effect.fingerprint
        AND effect.fingerprint = sha256(convert_to(concat_ws(E'\\n', effect.tool,
            effect.tool_version, effect.arguments::text), 'UTF8')) AS is_same,
    ARRAY(
        SELECT reviewer FROM celeriac.approval_decisions AS decision
        WHERE decision.approval_id = approval.approval_id AND decision = 'approve'
            AND decision.arguments_hash = approval.arguments_hash
        ORDER BY decided_at
    ) AS approved_by
FROM celeriac.effects AS effect JOIN celeriac.approvals AS approval USING (run_id, call_id)
WHERE run_id = %(run_id)s AND call_id = %(call_id)s AND approval.version = effect.version
"""


def consume(connection: Connection, claim: Claim, effect: Effect) -> Consumed:
    """Check the decision about the call once more, and use it up. Needs the transaction that starts
    the call. Raises `ApprovalLost`.
    """
    consumed = check(connection, claim, effect)
    connection.exec_driver_sql(
        "UPDATE celeriac.approvals SET consumed_at = clock_timestamp(), consumed_by_attempt = %s"
        " WHERE approval_id = %s AND status = 'approved' AND consumed_at IS NULL",
        (effect.attempt + 1, consumed.approval_id),
    )
    return consumed


def check(connection: Connection, claim: Claim, effect: Effect) -> Consumed:
    """The decision that the call can be made on, as long as the transaction lasts.

    A further attempt at a call goes on with the decision that its first attempt has used. So does a
    call that only reads, after a crash. Raises `ApprovalLost`.
    """
    parameters = {
        "run_id": claim.run_id,
        "call_id": effect.call_id,
        "arguments": dumps(effect.arguments),
    }
    deciders = connection.exec_driver_sql(
        "SELECT DISTINCT reviewer FROM celeriac.approvals"
        " JOIN celeriac.approval_decisions USING (approval_id)"
        " WHERE run_id = %(run_id)s AND call_id = %(call_id)s AND decision = 'approve'",
        parameters,
    ).scalars()
    known = principals.lock(connection, claim.tenant_id, list(deciders))
    row: Any = connection.exec_driver_sql(
        _STANDING + "FOR UPDATE OF approval", parameters
    ).fetchone()
    if row is None:
        raise ApprovalLost("there is no proposal of this version of it", is_damage=True)
    if not row.is_same:
        raise ApprovalLost(
            f"what would be executed is not what was approved as {row.approval_id}",
            is_damage=True,
        )
    is_tried_again = effect.state in (EffectState.NOT_DONE, EffectState.UNKNOWN)
    may_be_consumed = is_tried_again or effect.kind is EffectKind.NONE
    if row.is_consumed and not may_be_consumed:
        raise ApprovalLost(f"approval {row.approval_id} was used already", is_damage=True)
    requirement = Requirement.from_json(row.requirement)
    if not row.is_approved or len(row.approved_by) < requirement.quorum:
        raise ApprovalLost(f"proposal {row.approval_id} is not approved", is_damage=True)
    if not row.is_in_time:
        raise ApprovalLost("its time was over before the call began", is_damage=False)
    for reviewer in row.approved_by:
        objection = known[reviewer].objection(
            requirement, row.tool, row.arguments, row.requested_by
        )
        if objection is not None:
            raise ApprovalLost(objection, is_damage=False)
    return Consumed(row.approval_id, row.version, row[2], tuple(row.approved_by))


def checked_events(effect: Effect, consumed: Consumed) -> list[tuple[str, dict[str, JsonValue]]]:
    """What the history says of the look, before the call."""
    call: dict[str, JsonValue] = {
        "call_id": effect.call_id,
        "tool": effect.tool,
        "approval_id": consumed.approval_id,
    }
    return [
        ("args.validated", {**call, "arguments_hash": consumed.arguments_hash}),
        ("authz.checked", {**call, "approved_by": list(consumed.approved_by)}),
    ]


def lock_claimed(connection: Connection, claim: Claim) -> None:
    """Lock the run under this claim. Raises `Fenced` or `RequestsChanged`."""
    row = connection.exec_driver_sql(
        "SELECT FROM celeriac.runs WHERE run_id = %s AND step = %s AND claim_token = %s"
        " AND request_version = %s FOR UPDATE",
        (claim.run_id, claim.step, UUID(claim.token), claim.request_version),
    ).fetchone()
    if row is None:
        raise refusal(connection, claim)


def withdraw(connection: Connection, claim: Claim, effect: Effect, lost: ApprovalLost) -> None:
    """Revoke the approval that does not hold any more: the call is `planned` again, and can only be
    proposed anew. Needs a transaction. Raises `Fenced` or `RequestsChanged`.
    """
    lock_claimed(connection, claim)
    (approval_id,) = connection.exec_driver_sql(
        "UPDATE celeriac.approvals SET status = 'revoked', revoked_because = %s"
        " WHERE run_id = %s AND call_id = %s AND status = 'approved' RETURNING approval_id",
        (lost.why, claim.run_id, effect.call_id),
    ).one()
    connection.exec_driver_sql(
        "UPDATE celeriac.effects SET state = 'planned'"
        " WHERE run_id = %s AND call_id = %s AND state = 'approved'",
        (claim.run_id, effect.call_id),
    )
    data: dict[str, JsonValue] = {
        "approval_id": approval_id,
        "call_id": effect.call_id,
        "why": lost.why,
    }
    run_events.append(connection, claim.run_id, [("approval.revoked", data)], is_request=False)
    audit_trail.note(
        connection,
        claim.tenant_id,
        claim.worker_id,
        "call.execute",
        approval_id,
        run_id=claim.run_id,
        is_allowed=False,
        call_id=effect.call_id,
        why=lost.why,
    )
