"""Other arguments for a proposed call: judged by what the tool's code registered, not by the code.

So an edit is possible where none of the agent's code is, and while no worker lives. What only the
code can judge, such as a validator in Python, it judges before the call (`docs/approvals.md`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection

from celeriac import reports
from celeriac.approval import Approval, Requirement, rendered
from celeriac.codec import JsonValue, dumps, stored_form
from celeriac.conditions import value_at
from celeriac.errors import InvalidArguments, InvalidInput
from celeriac.ids import ApprovalId, UserId, new_approval_id
from celeriac.rollback import Rollback
from celeriac.schemas import check_against_schema
from celeriac.tools import parse_arguments


@dataclass(frozen=True, slots=True)
class Edited:
    """The next version of a proposal."""

    approval_id: ApprovalId
    arguments: dict[str, JsonValue]
    requirement: Requirement
    policy_version: str
    intent: str
    blast_radius: str


def edited(
    connection: Connection,
    agent: str,
    proposal: reports.Approval,
    requirement: Requirement,
    arguments: str | Mapping[str, object],
) -> Edited:
    """The proposal with these arguments, and the review that they need.

    Raises `InvalidArguments` for what the tool's schema does not take, and for a changed value that
    the policy calls immutable.
    """
    tool = _registered_tool(connection, agent, proposal)
    schema = cast("dict[str, JsonValue]", tool["parameters_schema"])
    complete = _fitting(proposal.tool, parse_arguments(arguments), schema)
    for path in requirement.immutable:
        was, becomes = value_at(proposal.arguments, path), value_at(complete, path)
        if was != becomes:
            raise _refusal(
                proposal.tool,
                f"{path} is {dumps(was)} and may not be changed, not even to {dumps(becomes)}: "
                "reject the proposal instead",
            )
    policy = Approval.from_json(cast("Mapping[str, Any]", tool["approval"]))
    plan = Rollback(str(proposal.rollback_plan["kind"]))
    return Edited(
        new_approval_id(),
        complete,
        policy.strictest(complete, plan),
        policy.policy_version,
        (policy.intent and rendered(policy.intent, complete)) or proposal.intent,
        (policy.blast_radius and rendered(policy.blast_radius, complete)) or proposal.blast_radius,
    )


def replace_arguments(
    connection: Connection, proposal: reports.Approval, new: Edited, by: UserId
) -> None:
    """Give the call the new arguments, and propose it so. The proposal before is superseded."""
    connection.exec_driver_sql(
        """
        WITH effect AS (
            UPDATE celeriac.effects SET arguments = %(arguments)s::jsonb, version = version + 1,
                requirement = %(requirement)s::jsonb,
                fingerprint = sha256(convert_to(
                    concat_ws(E'\\n', tool, tool_version, %(arguments)s::jsonb::text), 'UTF8'))
            WHERE run_id = %(run_id)s AND call_id = %(call_id)s AND state = 'proposed'
                AND version = %(version)s
            RETURNING run_id, call_id, version, arguments, fingerprint
        )
        INSERT INTO celeriac.approvals (approval_id, tenant_id, run_id, call_id, version,
            agent_hash, tool, tool_version, arguments, arguments_hash, intent, reason, data_lineage,
            permissions_touched, blast_radius, rollback_plan, idempotency_key, requirement, quorum,
            policy_version, requested_by, edited_from, surfaced_at, expires_at)
        SELECT %(approval_id)s, tenant_id, effect.run_id, effect.call_id, effect.version,
            agent_hash, tool, tool_version, effect.arguments, effect.fingerprint, %(intent)s,
            %(requirement)s::jsonb ->> 'reason',
            data_lineage || jsonb_build_array(jsonb_build_object('edited_by', %(by)s::text)),
            permissions_touched, %(blast_radius)s, rollback_plan, idempotency_key,
            %(requirement)s::jsonb, (%(requirement)s::jsonb ->> 'quorum')::smallint,
            %(policy_version)s, requested_by, approval_id,
            clock_timestamp(),  -- the editor has seen it
            clock_timestamp() + make_interval(
                secs => (%(requirement)s::jsonb ->> 'expires_seconds')::double precision)
        FROM effect JOIN celeriac.approvals AS before USING (run_id, call_id)
        WHERE before.approval_id = %(before)s
        """,
        {
            "approval_id": new.approval_id,
            "arguments": dumps(new.arguments),
            "requirement": dumps(new.requirement.to_json()),
            "policy_version": new.policy_version,
            "intent": new.intent,
            "blast_radius": new.blast_radius,
            "by": by,
            "run_id": proposal.run_id,
            "call_id": proposal.call_id,
            "version": proposal.version,
            "before": proposal.approval_id,
        },
    )


def _registered_tool(
    connection: Connection, agent: str, proposal: reports.Approval
) -> dict[str, JsonValue]:
    tool: dict[str, JsonValue] = connection.exec_driver_sql(
        """
        SELECT registered FROM celeriac.approvals JOIN celeriac.agents USING (agent_hash),
            jsonb_array_elements(definition -> 'tools') AS registered
        WHERE approval_id = %s AND agent = %s AND registered ->> 'name' = %s
        """,
        (proposal.approval_id, agent, proposal.tool),
    ).scalar_one()
    return tool


def _fitting(
    tool: str, arguments: dict[str, JsonValue] | None, schema: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """The arguments with the tool's defaults, if its schema takes them."""
    if arguments is None:
        raise _refusal(tool, "none were sent")
    properties = cast("dict[str, dict[str, JsonValue]]", schema.get("properties", {}))
    defaults = {name: about["default"] for name, about in properties.items() if "default" in about}
    complete = {**defaults, **arguments}
    try:
        check_against_schema(complete, schema)
    except InvalidInput as error:
        raise _refusal(tool, str(error)) from error
    if stored_form(complete) != complete:
        raise _refusal(tool, "they hold a secret, which is not stored; name it instead")
    return complete


def _refusal(tool: str, problems: str) -> InvalidArguments:
    return InvalidArguments(
        f"The arguments of {tool} cannot be used, and the proposal is still pending: {problems}"
    )
